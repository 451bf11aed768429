/* mla_fp8.c: latent attention of single tokens over FP8 history (ops/kv.h): codes become BF16
 * numbers on their way into shared memory, and from there on all is as with BF16 history.
 *
 * Records are no multiple of 16 bytes in general, so that a thread takes words: the words of the
 * next tile are on their way in registers while a tile is used, each with the scale of its codes,
 * which lies in a line that other lanes have asked for anyway. */
#include "ops/gpu/kernels/mla.h"

enum {
    /* Words of a record at most, and of a tile that a thread has. */
    RECORD_WORDS = (GPU_LATENT_MOST + GPU_LATENT_MOST / GPU_KV_SCALED * 4 + GPU_EXTRA_MOST * 2) / 4,
    THREAD_WORDS = (MLA_POSITIONS * RECORD_WORDS + MLA_THREADS - 1) / MLA_THREADS,
};
struct fp8_words {
    uint32_t word[THREAD_WORDS];
    float scale[THREAD_WORDS];
};

/* Bytes of a record in front of its extra values. */
GPU_FN uint32_t extra_at(const struct gpu_mla_decode *a) {
    return a->latent + (a->latent + GPU_KV_SCALED - 1) / GPU_KV_SCALED * 4;
}

GPU_FN void fp8_take(const struct gpu_mla_decode *a, const int32_t *pages, struct fp8_words *w,
                     uint32_t from, uint32_t end) {
    const uint32_t words = a->record_bytes / 4;
    GPU_UNROLL
    for (uint32_t u = 0; u < THREAD_WORDS; u++) {
        const uint32_t i = u * MLA_THREADS + gpu_thread(), at = i / words, k = i % words;
        const uint32_t position = from + at;
        w->word[u] = 0;
        w->scale[u] = 0;
        if (at >= MLA_POSITIONS || position >= end)
            continue;
        const uint8_t *record = a->kv + (uint64_t)(uint32_t)pages[position / PAGE] * a->page_bytes +
                                (uint64_t)(position % PAGE) * a->record_bytes;
        w->word[u] = ((const uint32_t *)record)[k];
        if (k * 4 < a->latent)
            w->scale[u] = ((const float *)(record + a->latent))[k * 4 / GPU_KV_SCALED];
    }
}

GPU_FN void fp8_put(const struct gpu_mla_decode *a, const struct fp8_words *w,
                    uint16_t (*tile)[GPU_MLA_ROW]) {
    const uint32_t words = a->record_bytes / 4, extra = extra_at(a);
    GPU_UNROLL
    for (uint32_t u = 0; u < THREAD_WORDS; u++) {
        const uint32_t i = u * MLA_THREADS + gpu_thread(), at = i / words, k = i % words;
        if (at >= MLA_POSITIONS)
            continue;
        const uint32_t v = w->word[u];
        const float scale = w->scale[u];
        if (k * 4 < a->latent) {
            uint32_t *to = (uint32_t *)&tile[at][k * 4];
            to[0] = gpu_bf16_pair(gpu_from_e4m3(v & 0xFFu) * scale,
                                  gpu_from_e4m3(v >> 8 & 0xFFu) * scale);
            to[1] = gpu_bf16_pair(gpu_from_e4m3(v >> 16 & 0xFFu) * scale,
                                  gpu_from_e4m3(v >> 24) * scale);
        } else if (k * 4 >= extra && k * 4 < extra + a->extra * 2) {
            *(uint32_t *)&tile[at][a->latent + (k * 4 - extra) / 2] = v;
        }
    }
}

/* What products read beyond a record's values, up to a multiple of 32, is never written again. */
GPU_FN void fp8_pad(const struct gpu_mla_decode *a, mla_shared *s) {
    const uint32_t width = a->latent + a->extra, pad = (width + 31) / 32 * 32 - width;
    for (uint32_t i = gpu_thread(); i < MLA_STAGES * MLA_POSITIONS * pad; i += MLA_THREADS)
        s->kv[i / (MLA_POSITIONS * pad)][i / pad % MLA_POSITIONS][width + i % pad] = 0;
}

GPU_KERNEL(weir_mla_split_fp8, gpu_mla_decode, MLA_THREADS, 1) {
    GPU_SHARED(mla_shared, s);
    const struct mla_share m = mla_share_of(&a, GPU_MLA_HEADS);
    gpu_wait_previous();
    gpu_launch_next();
    if (m.begin >= m.seq.positions)
        return;
    const int32_t *pages = a.pages + m.seq.first_page;
    struct fp8_words words;
    fp8_take(&a, pages, &words, m.begin, m.end);
    mla_queries(&a, s, m.seq.row, m.head0);
    fp8_pad(&a, s);
    struct gpu_sums sum[MLA_PART];
    float top = -GPU_INFINITY, total = 0;
    mla_clear(sum);
    fp8_put(&a, &words, s->kv[0]);
    for (uint32_t from = m.begin; from < m.end; from += MLA_POSITIONS) {
        const uint32_t next = from + MLA_POSITIONS;
        if (next < m.end)
            fp8_take(&a, pages, &words, next, m.end);
        gpu_barrier();
        mla_tile(&a, s, s->kv[0], from, m.end, &top, &total, sum);
        if (next < m.end)
            fp8_put(&a, &words, s->kv[0]);
    }
    mla_put(&a, s, &m, top, total, sum);
}
