/* kernels_loops.c: see kernels_loops.h. Called by kernels_roof.c.
 * Functions carry their instruction set themselves (target attribute), as this is the bench's own
 * yardstick: the kernels' files are built elsewhere, with flags of their own.
 * Invariant that bites: a loop whose result nobody reads is removed by the compiler; each result
 * flows into something volatile in the caller. */
#include "bench/kernels_loops.h"

#include "base/cpu.h"

#include <string.h>

/* Ahead of a read or update: nothing, half a page, a page, two pages. */
static const size_t ahead_of[LOOP_FORMS] = {0, 2048, 4096, 8192};

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define AVX2   __attribute__((target("avx2,fma")))

static bool wide(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}
static bool middle(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

AVX512 static float read_wide(const float *p, size_t bytes, size_t ahead) {
    __m512 sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = _mm512_setzero_ps();
    const char *at = (const char *)p, *end = at + bytes;
    for (; at < end; at += 512) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (ahead)
                _mm_prefetch(at + ahead + 64 * i, _MM_HINT_T0);
            sum[i] = _mm512_add_ps(sum[i], _mm512_load_ps(at + 64 * i));
        }
    }
    for (int i = 1; i < 8; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}
AVX2 static float read_middle(const float *p, size_t bytes, size_t ahead) {
    __m256 sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = _mm256_setzero_ps();
    const char *at = (const char *)p, *end = at + bytes;
    for (; at < end; at += 256) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (ahead && i % 2 == 0)
                _mm_prefetch(at + ahead + 32 * i, _MM_HINT_T0);
            sum[i] = _mm256_add_ps(sum[i], _mm256_load_ps((const float *)(at + 32 * i)));
        }
    }
    for (int i = 1; i < 8; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    float lane[8];
    _mm256_storeu_ps(lane, sum[0]);
    return lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
}

AVX512 static void modify_wide(float *p, size_t bytes, size_t ahead) {
    const __m512 half = _mm512_set1_ps(0.5f), quarter = _mm512_set1_ps(0.25f);
    char *at = (char *)p, *end = at + bytes;
    for (; at < end; at += 512) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (ahead)
                __builtin_prefetch(at + ahead + 64 * i, 1);
            _mm512_store_ps(at + 64 * i,
                            _mm512_fmadd_ps(_mm512_load_ps(at + 64 * i), half, quarter));
        }
    }
}
AVX2 static void modify_middle(float *p, size_t bytes, size_t ahead) {
    const __m256 half = _mm256_set1_ps(0.5f), quarter = _mm256_set1_ps(0.25f);
    char *at = (char *)p, *end = at + bytes;
    for (; at < end; at += 256) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            float *x = (float *)(at + 32 * i);
            if (ahead && i % 2 == 0)
                __builtin_prefetch(at + ahead + 32 * i, 1);
            _mm256_store_ps(x, _mm256_fmadd_ps(_mm256_load_ps(x), half, quarter));
        }
    }
}

/* Stores that pass the caches by: nothing is read only to be overwritten. */
AVX512 static void copy_wide(float *to, const float *from, size_t bytes, size_t ahead) {
    char *t = (char *)to;
    const char *f = (const char *)from, *end = f + bytes;
    for (; f < end; f += 512, t += 512) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (ahead)
                _mm_prefetch(f + ahead + 64 * i, _MM_HINT_T0);
            _mm512_stream_ps((float *)(t + 64 * i), _mm512_load_ps(f + 64 * i));
        }
    }
    _mm_sfence();
}
AVX2 static void copy_middle(float *to, const float *from, size_t bytes, size_t ahead) {
    char *t = (char *)to;
    const char *f = (const char *)from, *end = f + bytes;
    for (; f < end; f += 256, t += 256) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (ahead && i % 2 == 0)
                _mm_prefetch(f + ahead + 32 * i, _MM_HINT_T0);
            _mm256_stream_ps((float *)(t + 32 * i), _mm256_load_ps((const float *)(f + 32 * i)));
        }
    }
    _mm_sfence();
}

/* Sums that hide the latency of a multiply-add at any width. */
enum { SUMS = 24, SUMS_256 = 12 };

/* Operands the compiler cannot know, and values that stay finite: x <- x * 0.999 + 0.001. */
static volatile float factor = 0.999f, addend = 0.001f;
static volatile float kept_float;

AVX512 static double peak_f32_wide(uint64_t rounds) {
    const __m512 a = _mm512_set1_ps(factor), b = _mm512_set1_ps(addend);
    __m512 s[SUMS];
    for (int i = 0; i < SUMS; i++)
        s[i] = _mm512_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++)
            s[i] = _mm512_fmadd_ps(s[i], a, b);
    for (int i = 1; i < SUMS; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    kept_float = _mm512_reduce_add_ps(s[0]);
    return (double)rounds * SUMS * 32;
}
AVX2 static double peak_f32_middle(uint64_t rounds) {
    const __m256 a = _mm256_set1_ps(factor), b = _mm256_set1_ps(addend);
    __m256 s[SUMS_256];
    for (int i = 0; i < SUMS_256; i++)
        s[i] = _mm256_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS_256; i++)
            s[i] = _mm256_fmadd_ps(s[i], a, b);
    for (int i = 1; i < SUMS_256; i++)
        s[0] = _mm256_add_ps(s[0], s[i]);
    float lane[8];
    _mm256_storeu_ps(lane, s[0]);
    kept_float = lane[0] + lane[7];
    return (double)rounds * SUMS_256 * 16;
}

/* The dot products are written as instructions: gcc 12 takes the sums of these intrinsics through
 * memory, and the peak would be half of what it is. Twelve sums are enough at one instruction a
 * cycle. Operands are zero, as the time does not depend on them. rounds >= 1. */
#define TWELVE(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11)
#define ZERO(R)   "vpxorq %%zmm" #R ", %%zmm" #R ", %%zmm" #R "\n\t"
#define DOTS(I)                                                                                    \
    __asm__ volatile(TWELVE(ZERO) ZERO(12) "1:\n\t" TWELVE(I) "dec %0\n\tjnz 1b\n\tvzeroupper"     \
                     : "+r"(rounds)                                                                \
                     :                                                                             \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",       \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
#define BF16(R) "vdpbf16ps %%zmm12, %%zmm12, %%zmm" #R "\n\t"
#define INT8(R) "vpdpbusd %%zmm12, %%zmm12, %%zmm" #R "\n\t"

static double peak_bf16(uint64_t rounds) {
    double flops = (double)rounds * 12 * 64;
    DOTS(BF16);
    return flops;
}
static double peak_int8(uint64_t rounds) {
    double flops = (double)rounds * 12 * 128;
    DOTS(INT8);
    return flops;
}

/* Products of bytes as AVX2 has them: four of them added up in 16 bits, then widened. */
#define BYTES(SUM)                                                                                 \
    "vpmaddubsw %%ymm12, %%ymm12, %%ymm0\n\tvpmaddubsw %%ymm12, %%ymm12, %%ymm1\n\t"               \
    "vpmaddubsw %%ymm12, %%ymm12, %%ymm2\n\tvpmaddubsw %%ymm12, %%ymm12, %%ymm3\n\t"               \
    "vpaddw %%ymm0, %%ymm1, %%ymm0\n\tvpaddw %%ymm2, %%ymm3, %%ymm2\n\t"                           \
    "vpaddw %%ymm0, %%ymm2, %%ymm0\n\tvpmaddwd %%ymm12, %%ymm0, %%ymm0\n\t"                        \
    "vpaddd %%ymm0, " SUM ", " SUM "\n\t"
static double peak_bytes(uint64_t rounds) {
    double flops = (double)rounds * 4 * 4 * 64;
    __asm__ volatile("vpxor %%ymm12, %%ymm12, %%ymm12\n\t"
                     "vpxor %%ymm4, %%ymm4, %%ymm4\n\tvpxor %%ymm5, %%ymm5, %%ymm5\n\t"
                     "vpxor %%ymm6, %%ymm6, %%ymm6\n\tvpxor %%ymm7, %%ymm7, %%ymm7\n"
                     "1:\n\t" BYTES("%%ymm4") BYTES("%%ymm5") BYTES("%%ymm6")
                         BYTES("%%ymm7") "dec %0\n\tjnz 1b\n\tvzeroupper"
                     : "+r"(rounds)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm12");
    return flops;
}

/* Tiles: four sums of 16x16 from two left and two right sides, as a product has them. */
struct tile_setup {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
#define TILES(I)                                                                                   \
    __asm__ volatile(                                                                              \
        "ldtilecfg %1\n\t"                                                                         \
        "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"             \
        "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n"               \
        "1:\n\t" I " %%tmm6, %%tmm4, %%tmm0\n\t" I " %%tmm7, %%tmm4, %%tmm1\n\t" I                 \
        " %%tmm6, %%tmm5, %%tmm2\n\t" I " %%tmm7, %%tmm5, %%tmm3\n\t"                              \
        "dec %0\n\tjnz 1b\n\ttilerelease"                                                          \
        : "+r"(rounds)                                                                             \
        : "m"(setup)                                                                               \
        : "cc", "memory")

static double peak_tiles(uint64_t rounds) {
    struct tile_setup setup = {.palette = 1};
    double steps = (double)rounds * 4;
    for (int i = 0; i < 8; i++) {
        setup.row_bytes[i] = 64;
        setup.rows[i] = 16;
    }
    TILES("tdpbf16ps");
    return steps * 16 * 16 * 64;
}

static double peak_special(enum arithmetic a, uint64_t rounds) {
    if (a == ARITHMETIC_AMX_BF16)
        return cpu_best() >= CPU_AMX ? peak_tiles(rounds) : 0;
    if (a == ARITHMETIC_BF16 && wide() && __builtin_cpu_supports("avx512bf16"))
        return peak_bf16(rounds);
    if (a == ARITHMETIC_INT8 && wide() && __builtin_cpu_supports("avx512vnni"))
        return peak_int8(rounds);
    if (a == ARITHMETIC_INT8 && middle() && cpu_best() == CPU_AVX2)
        return peak_bytes(rounds);
    return 0;
}
#else
static bool wide(void) {
    return false;
}
static bool middle(void) {
    return false;
}
#endif

/* ----------------------------------------------------------------------------- any processor */

typedef float four __attribute__((vector_size(16)));

static float read_plain(const float *p, size_t bytes) {
    four sum[4] = {{0}};
    for (size_t i = 0; i < bytes / 4; i += 16)
        for (int k = 0; k < 4; k++) {
            four v;
            memcpy(&v, p + i + 4 * k, sizeof v);
            sum[k] += v;
        }
    four s = sum[0] + sum[1] + sum[2] + sum[3];
    return s[0] + s[1] + s[2] + s[3];
}

static volatile float plain_kept;
static double peak_plain(uint64_t rounds) {
    four s[12];
    const four a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {0.001f, 0.001f, 0.001f, 0.001f};
    for (int i = 0; i < 12; i++)
        s[i] = a * (float)i;
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            s[i] = s[i] * a + b;
    for (int i = 0; i < 12; i++)
        plain_kept = s[i][0] + s[i][3];
    return (double)rounds * 12 * 8;
}

float loop_read(const float *from, size_t bytes, int form) {
#if defined(__x86_64__)
    if (wide())
        return read_wide(from, bytes, ahead_of[form]);
    if (middle())
        return read_middle(from, bytes, ahead_of[form]);
#endif
    return read_plain(from, bytes);
}

void loop_modify(float *x, size_t bytes, int form) {
#if defined(__x86_64__)
    if (wide()) {
        modify_wide(x, bytes, ahead_of[form]);
        return;
    }
    if (middle()) {
        modify_middle(x, bytes, ahead_of[form]);
        return;
    }
#endif
    for (size_t i = 0; i < bytes / 4; i++)
        x[i] = x[i] * 0.5f + 0.25f;
}

void loop_copy(float *to, const float *from, size_t bytes, int form) {
#if defined(__x86_64__)
    if (wide()) {
        copy_wide(to, from, bytes, ahead_of[form]);
        return;
    }
    if (middle()) {
        copy_middle(to, from, bytes, ahead_of[form]);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

double loop_peak(enum arithmetic a, uint64_t rounds, int form) {
#if defined(__x86_64__)
    if (a != ARITHMETIC_F32)
        return form == 0 ? peak_special(a, rounds) : 0;
    if (form == 0 && wide())
        return peak_f32_wide(rounds);
    if (form == 1 && middle())
        return peak_f32_middle(rounds);
#endif
    return form == 2 && a == ARITHMETIC_F32 && !middle() && !wide() ? peak_plain(rounds) : 0;
}
