/* kernels_table.c: the cases of `weir bench kernels`: Kimi K3's true shapes. Read by
 * kernels_build.c (records), kernels_check.c (bounds), kernels.c (shares) and the command.
 * Invariant that bites: costs are lower bounds of any implementation. A share of the roof above 1
 * would mean that a case counts bytes that need not move. */
#include "bench/kernels_table.h"

#include "ops/kv.h"
#include "ops/pack.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HIDDEN = 7168,
    LATENT = 3584, /* width of the routed experts */
    INTER = 3072,
    HEADS = 96,
    DIM = 128,
    EXPERTS = 896,
    TOP_K = 16,
    POOL = 64,    /* different experts in memory: 1.1 GB */
    LONG = 4096,  /* positions from which on the order of a sum shows */
    FEW_ROWS = 64 /* activations of so many rows or more come from memory */
};

#define LINEAR(NAME, OUT, IN, TYPE, N)                                                             \
    {                                                                                              \
        .name = NAME, .family = KERNEL_LINEAR, .dtype = TYPE, .n = N, .out = OUT, .in = IN,        \
        .bound = BOUND_DOT                                                                         \
    }
#define QUANTISED(NAME, OUT, IN, FORM, N)                                                          \
    {                                                                                              \
        .name = NAME, .family = KERNEL_LINEAR, .dtype = DTYPE_BF16, .dense = FORM, .n = N,         \
        .out = OUT, .in = IN, .bound = BOUND_DOT                                                   \
    }
#define UP(N)                                                                                      \
    {                                                                                              \
        .name = "experts_up", .family = KERNEL_EXPERTS_UP, .dtype = DTYPE_MXFP4, .n = N,           \
        .out = INTER, .in = LATENT, .count = POOL, .top_k = TOP_K, .bound = BOUND_GATED            \
    }
#define DOWN(N)                                                                                    \
    {                                                                                              \
        .name = "experts_down", .family = KERNEL_EXPERTS_DOWN, .dtype = DTYPE_MXFP4, .n = N,       \
        .out = LATENT, .in = INTER, .count = POOL, .top_k = TOP_K, .bound = BOUND_DOT              \
    }
#define STEP(N, LAYERS, SLOW)                                                                      \
    {                                                                                              \
        .name = "kda_step", .family = KERNEL_KDA_STEP, .dtype = DTYPE_F32, .n = N,                 \
        .count = LAYERS, .heads = HEADS, .dim = DIM, .bound = BOUND_RECURRENCE, .slow = SLOW       \
    }
#define KDA(N, SLOW)                                                                               \
    {                                                                                              \
        .name = "kda_prefill", .family = KERNEL_KDA_PREFILL, .dtype = DTYPE_F32, .n = N,           \
        .count = 1, .heads = HEADS, .dim = DIM, .bound = BOUND_RECURRENCE, .slow = SLOW            \
    }
#define SHORT_KDA(N)                                                                               \
    {.name = "kda_prefill",                                                                        \
     .family = KERNEL_KDA_PREFILL,                                                                 \
     .dtype = DTYPE_F32,                                                                           \
     .n = N,                                                                                       \
     .count = 69,                                                                                  \
     .heads = HEADS,                                                                               \
     .dim = DIM,                                                                                   \
     .bound = BOUND_RECURRENCE},                                                                   \
    {                                                                                              \
        .name = "kda_tokens", .family = KERNEL_KDA_TOKENS, .dtype = DTYPE_F32, .n = N,             \
        .count = 69, .heads = HEADS, .dim = DIM, .bound = BOUND_RECURRENCE                         \
    }
#define MLA(N, HISTORY, TYPE, SLOW)                                                                \
    {                                                                                              \
        .name = "mla_decode", .family = KERNEL_MLA_DECODE, .dtype = TYPE, .n = N, .heads = HEADS,  \
        .dim = DIM, .history = HISTORY, .bound = BOUND_SOFTMAX, .slow = SLOW                       \
    }
#define ROWS(NAME, FAMILY, N, OUT, COUNT, BOUND)                                                   \
    {                                                                                              \
        .name = NAME, .family = FAMILY, .dtype = DTYPE_F32, .n = N, .out = OUT, .count = COUNT,    \
        .bound = BOUND                                                                             \
    }

static const struct kernel_case table[] = {
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 1),
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 2),
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 4),
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 8),
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 16),
    LINEAR("expert_w1", INTER, LATENT, DTYPE_MXFP4, 64),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 1),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 2),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 4),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 8),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 16),
    LINEAR("expert_w2", LATENT, INTER, DTYPE_MXFP4, 64),
    UP(1),
    UP(4),
    UP(16),
    DOWN(1),
    DOWN(4),
    DOWN(16),
    LINEAR("trunk_in", 12288, HIDDEN, DTYPE_BF16, 1),
    LINEAR("trunk_in", 12288, HIDDEN, DTYPE_BF16, 8),
    LINEAR("trunk_in", 12288, HIDDEN, DTYPE_BF16, 128),
    LINEAR("trunk_in", 12288, HIDDEN, DTYPE_BF16, 512),
    LINEAR("trunk_out", HIDDEN, 12288, DTYPE_BF16, 1),
    LINEAR("trunk_out", HIDDEN, 12288, DTYPE_BF16, 8),
    LINEAR("trunk_out", HIDDEN, 12288, DTYPE_BF16, 128),
    LINEAR("trunk_out", HIDDEN, 12288, DTYPE_BF16, 512),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_INT8, 1),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_INT8, 8),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_INT8, 128),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_FP8, 1),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_FP8, 8),
    QUANTISED("trunk_in", 12288, HIDDEN, DENSE_FP8, 128),
    LINEAR("q_b", HEADS *(DIM + DIM / 2), 1536, DTYPE_BF16, 1),
    LINEAR("q_b", HEADS *(DIM + DIM / 2), 1536, DTYPE_BF16, 128),
    LINEAR("kv_b", HEADS * 2 * DIM, 512, DTYPE_BF16, 1),
    LINEAR("kv_b", HEADS * 2 * DIM, 512, DTYPE_BF16, 128),
    LINEAR("router", EXPERTS, HIDDEN, DTYPE_BF16, 1),
    LINEAR("router", EXPERTS, HIDDEN, DTYPE_BF16, 8),
    LINEAR("router", EXPERTS, HIDDEN, DTYPE_BF16, 128),
    LINEAR("head", 163840, HIDDEN, DTYPE_BF16, 1),
    LINEAR("head", 163840, HIDDEN, DTYPE_BF16, 8),
    STEP(1, 69, false),
    STEP(4, 69, false),
    STEP(16, 18, true), /* as many states in all: 69 layers of 16 sequences would take 7 GB */
    SHORT_KDA(2),
    SHORT_KDA(4),
    SHORT_KDA(8),
    SHORT_KDA(16),
    SHORT_KDA(63),
    SHORT_KDA(64),
    SHORT_KDA(65),
    KDA(256, false),
    KDA(1024, false),
    KDA(4096, false),
    KDA(16384, true),
    MLA(1, 512, DTYPE_F32, false),
    MLA(1, 2048, DTYPE_F32, false),
    MLA(1, 4096, DTYPE_F32, false),
    MLA(1, 32768, DTYPE_F32, false),
    MLA(1, 131072, DTYPE_F32, true),
    MLA(1, 512, DTYPE_BF16, false),
    MLA(1, 2048, DTYPE_BF16, false),
    MLA(1, 4096, DTYPE_BF16, false),
    MLA(1, 32768, DTYPE_BF16, false),
    MLA(1, 131072, DTYPE_BF16, true),
    MLA(4, 2048, DTYPE_BF16, false),
    MLA(1, 2048, DTYPE_FP8, false),
    MLA(1, 32768, DTYPE_FP8, false),
    {.name = "mla_prefill",
     .family = KERNEL_MLA_PREFILL,
     .dtype = DTYPE_BF16,
     .n = 2048,
     .heads = HEADS,
     .dim = DIM,
     .bound = BOUND_SOFTMAX,
     .slow = true},
    {.name = "mla_write",
     .family = KERNEL_MLA_WRITE,
     .dtype = DTYPE_BF16,
     .n = 512,
     .heads = HEADS,
     .dim = DIM,
     .bound = BOUND_COPY},
    ROWS("mix_norm", KERNEL_MIX_NORM, 1, HIDDEN, 1, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 1, HIDDEN, 2, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 1, HIDDEN, 4, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 1, HIDDEN, 8, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 512, HIDDEN, 1, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 512, HIDDEN, 4, BOUND_SOFTMAX),
    ROWS("mix_norm", KERNEL_MIX_NORM, 512, HIDDEN, 8, BOUND_SOFTMAX),
    ROWS("norm", KERNEL_NORM, 1, 1536, 0, BOUND_DOT),
    ROWS("norm", KERNEL_NORM, 512, 1536, 0, BOUND_DOT),
    ROWS("situ", KERNEL_GLU, 1, 2 * INTER, 0, BOUND_SOFTMAX),
    ROWS("situ", KERNEL_GLU, 512, 2 * INTER, 0, BOUND_SOFTMAX),
    {.name = "route",
     .family = KERNEL_ROUTE,
     .n = 1,
     .count = EXPERTS,
     .top_k = TOP_K,
     .bound = BOUND_SOFTMAX},
    {.name = "route",
     .family = KERNEL_ROUTE,
     .n = 512,
     .count = EXPERTS,
     .top_k = TOP_K,
     .bound = BOUND_SOFTMAX},
    {.name = "embed",
     .family = KERNEL_EMBED,
     .dtype = DTYPE_BF16,
     .n = 1,
     .out = HIDDEN,
     .count = 32768,
     .bound = BOUND_COPY},
    {.name = "embed",
     .family = KERNEL_EMBED,
     .dtype = DTYPE_BF16,
     .n = 512,
     .out = HIDDEN,
     .count = 32768,
     .bound = BOUND_COPY},
};

const struct kernel_case *kernel_table(size_t *n) {
    *n = sizeof table / sizeof table[0];
    return table;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct kernel_case kernel_case_small(struct kernel_case c) {
    bool matrix = c.family == KERNEL_LINEAR || c.family == KERNEL_EXPERTS_UP ||
                  c.family == KERNEL_EXPERTS_DOWN;
    c.n = least(c.n, c.family == KERNEL_KDA_PREFILL || c.family == KERNEL_KDA_TOKENS ||
                             c.family == KERNEL_MLA_PREFILL
                         ? 150
                         : 65);
    c.out = least(c.out, matrix ? 80 + c.out / 2048 : 200);
    c.in = least(c.in, 32 * (2 + c.in / 1024));
    c.count = least(c.count, c.family == KERNEL_ROUTE ? 60 : 20);
    c.top_k = least(c.top_k, 6);
    c.heads = least(c.heads, 5);
    c.dim = least(c.dim, 32);
    c.history = least(c.history, 60 + c.history % 1000);
    return c;
}

const char *kernel_shape(const struct kernel_case *c, char *buf, size_t cap) {
    switch (c->family) {
    case KERNEL_LINEAR: snprintf(buf, cap, "%ux%u n=%u", c->out, c->in, c->n); break;
    case KERNEL_EXPERTS_UP:
        snprintf(buf, cap, "%u of %u 2x%ux%u n=%u", c->top_k, c->count, c->out, c->in, c->n);
        break;
    case KERNEL_EXPERTS_DOWN:
        snprintf(buf, cap, "%u of %u %ux%u n=%u", c->top_k, c->count, c->out, c->in, c->n);
        break;
    case KERNEL_KDA_STEP:
        snprintf(buf, cap, "%ux%ux%u of %u layers n=%u", c->heads, c->dim, c->dim, c->count, c->n);
        break;
    case KERNEL_KDA_PREFILL:
    case KERNEL_KDA_TOKENS:
        snprintf(buf, cap, "%ux%ux%u n=%u", c->heads, c->dim, c->dim, c->n);
        break;
    case KERNEL_MLA_DECODE:
    case KERNEL_MLA_PREFILL:
        snprintf(buf, cap, "%u heads %u positions n=%u", c->heads, c->history, c->n);
        break;
    case KERNEL_MLA_WRITE: snprintf(buf, cap, "%u n=%u", 4 * c->dim + c->dim / 2, c->n); break;
    case KERNEL_MIX_NORM: snprintf(buf, cap, "%u bank of %u n=%u", c->out, c->count, c->n); break;
    case KERNEL_NORM:
    case KERNEL_GLU: snprintf(buf, cap, "%u n=%u", c->out, c->n); break;
    case KERNEL_ROUTE: snprintf(buf, cap, "%u of %u n=%u", c->top_k, c->count, c->n); break;
    case KERNEL_EMBED: snprintf(buf, cap, "%ux%u n=%u", c->count, c->out, c->n); break;
    }
    return buf;
}

const char *kernel_format(const struct kernel_case *c) {
    if (c->dense != DENSE_BF16)
        return c->dense == DENSE_INT8 ? "int8" : "fp8";
    switch (c->dtype) {
    case DTYPE_F32: return "f32";
    case DTYPE_BF16: return "bf16";
    case DTYPE_U8: return "u8";
    case DTYPE_FP8: return "fp8";
    case DTYPE_MXFP4: return "mxfp4";
    }
    return "?";
}

bool kernel_selected(const struct kernel_case *c, const char *filter) {
    if (!filter || !*filter)
        return true;
    char shape[96], whole[160];
    snprintf(whole, sizeof whole, "%s %s %s", c->name, kernel_shape(c, shape, sizeof shape),
             kernel_format(c));
    for (const char *at = filter; *at;) {
        size_t len = strcspn(at, ",");
        for (const char *w = whole; len && *w; w++)
            if (!strncmp(w, at, len))
                return true;
        at += len + (at[len] == ',');
    }
    return false;
}

/* ------------------------------------------------------------------------------------- bounds */

static bool is_product(const struct kernel_case *c) {
    return c->family == KERNEL_LINEAR || c->family == KERNEL_EXPERTS_UP ||
           c->family == KERNEL_EXPERTS_DOWN;
}

/* How activations meet the weights of a case. */
static enum activation activation_of(const struct kernel_case *c, enum activation a) {
    if (!is_product(c) || c->dtype == DTYPE_F32)
        return ACTIVATION_F32;
    bool bytes = c->dtype == DTYPE_MXFP4 || c->dense == DENSE_INT8;
    return a == ACTIVATION_INT8 && !bytes ? ACTIVATION_BF16 : a;
}

enum arithmetic kernel_arithmetic(const struct kernel_case *c, const struct column *column) {
    enum activation a = activation_of(c, column->activation);
    if (a == ACTIVATION_BF16 && c->dense == DENSE_INT8)
        return ARITHMETIC_F32; /* there is no short way from INT8 weights to BF16 */
    return column->arithmetic[a];
}

const char *arithmetic_name(enum arithmetic a) {
    switch (a) {
    case ARITHMETIC_F32: return "f32";
    case ARITHMETIC_BF16: return "bf16";
    case ARITHMETIC_INT8: return "int8";
    case ARITHMETIC_AMX_BF16: return "amx bf16";
    case ARITHMETICS: break;
    }
    return "?";
}

/* Largest errors stand at about six times the rms of a dot product over the number of results that
 * are looked at; bounds leave as much again. */
static const struct kernel_limit limits[BOUNDS][ACTIVATIONS] = {
    [BOUND_COPY] = {{1e-7, 1e-6, "values pass through unchanged, or are rounded as the exact ones"},
                    {3e-3, 8e-3, "one rounding to bf16"},
                    {3e-3, 8e-3, "history and embeddings have no int8 form: as bf16"}},
    [BOUND_DOT] = {{2e-6, 1.5e-5,
                    "the same products in another order of f32 sums, 1024 of them in a row"},
                   {4e-3, 2.5e-2,
                    "activations rounded to bf16: 2^-9 / sqrt 3 = 1.1e-3 each, and "
                    "as much for a second rounding"},
                   {8e-3, 5e-2, "activations rounded to 1/127 of their group's largest: 3.8e-3"}},
    /* The rms of two errors is root 2 times that of one. The product of two normal variables has
     * longer tails than they have: among 50,000 values the largest stands at 11 times their rms. */
    [BOUND_GATED] = {{2e-6, 3e-5, "two sums of products, one through the activation"},
                     {4e-3, 5e-2, "the same, of activations rounded to bf16"},
                     {8e-3, 1e-1, "the same, of activations rounded to 1/127 of their group's"}},
    [BOUND_SOFTMAX] = {{2e-6, 2e-5,
                        "order of f32 sums, and units in the last place of exp; "
                        "beyond 4096 positions with the root of their number"},
                       {6e-3, 4e-2,
                        "scores from rounded operands: the error of a score is one "
                        "of the logarithm of a weight"},
                       {1.2e-2, 8e-2, "the same with int8 operands"}},
    [BOUND_RECURRENCE] = {{3e-6, 6e-5,
                           "f32 sums in another order, fed back; chunks leave out "
                           "factors below 2^-50"},
                          {6e-3, 6e-2,
                           "operands of the chunk's products rounded to bf16, the "
                           "carried state in f32"},
                          {1.2e-2, 1.2e-1, "the same with int8 operands"}},
};

/* Weights quantised at load, beside which everything else is small: INT8 has steps of 1/127 of the
 * largest of 128, rounded to within half of one; E4M3 keeps three bits behind the leading one:
 * 2^-4 / sqrt 3 at worst. */
static const struct kernel_limit quantised[] = {
    [DENSE_INT8] = {1e-2, 6e-2, "weights rounded to 1/127 of their group's largest: 4e-3 to 6e-3"},
    [DENSE_FP8] = {4e-2, 2.4e-1, "weights rounded to three bits: 2e-2 to 3e-2"},
};

struct kernel_limit kernel_limit(const struct kernel_case *c, enum activation a) {
    if (c->dense != DENSE_BF16)
        return quantised[c->dense];
    a = activation_of(c, a);
    struct kernel_limit l = limits[c->bound][a];
    if (a == ACTIVATION_F32 && c->history > LONG) {
        double grown = sqrt((double)c->history / LONG);
        l.rms *= grown;
        l.largest *= grown;
    }
    return l;
}

/* -------------------------------------------------------------------------------------- costs */

double kernel_matrix_bytes(enum dtype t, double rows, double cols) {
    switch (t) {
    case DTYPE_F32: return rows * cols * 4;
    case DTYPE_BF16: return rows * cols * 2;
    case DTYPE_U8: return rows * cols;
    case DTYPE_FP8: break; /* of history alone: kv_record_bytes */
    case DTYPE_MXFP4: return rows * cols / 2 + rows * cols / 32;
    }
    return 0;
}

/* One byte and a share of a group's f32 scale, where weights are quantised at load. */
static double weight_bytes(const struct kernel_case *c, double rows, double cols) {
    if (c->dense != DENSE_BF16)
        return rows * cols * (1 + 4.0 / PACK_GROUP);
    return kernel_matrix_bytes(c->dtype, rows, cols);
}

/* Activations: `in` floats read and `out` written per row, of n rows. */
static void activations(struct kernel_cost *k, double n, double in, double out) {
    if (n >= FEW_ROWS) {
        k->read_bytes += n * in * 4;
        k->write_bytes += n * out * 4;
    } else {
        k->cache_bytes += n * (in + out) * 4;
    }
}

static void kda_cost(struct kernel_cost *k, const struct kernel_case *c) {
    double n = c->n, heads = c->heads, dim = c->dim, width = heads * dim;
    double state = 4 * (width * dim + 9 * width); /* S and a window of three tokens of q, k, v */
    bool step = c->family == KERNEL_KDA_STEP;
    k->modify_bytes = step ? n * state : 0;
    k->read_bytes = step ? 0 : state;
    k->write_bytes = step ? 0 : state;
    activations(k, n, 5 * width + heads, width);
    /* A token on its own: S^T k, S^T q and the update, and the decay of every value. In chunks of
     * 16: three products of 16 x dim x dim, and two triangles of products between tokens, their
     * solution and their read-out, each half of 16 x 16 x dim. */
    double token = 7 * dim * dim, chunked = 6 * dim * dim + 4 * 16 * dim;
    k->flops = n * heads * (step || token < chunked ? token : chunked);
}

static uint32_t kernel_latent(const struct kernel_case *c) {
    return c->latent ? c->latent : 4 * c->dim;
}
static uint32_t kernel_extra(const struct kernel_case *c) {
    return c->extra ? c->extra : c->dim / 2;
}

static void mla_cost(struct kernel_cost *k, const struct kernel_case *c) {
    double n = c->n, h = c->heads, d = c->dim, r = kernel_extra(c), lat = kernel_latent(c);
    double past = c->history;
    double kv_b = kernel_matrix_bytes(DTYPE_BF16, h * 2 * d, lat);
    double record = (double)kv_record_bytes(c->dtype, kernel_latent(c), kernel_extra(c));
    if (c->family == KERNEL_MLA_DECODE) {
        /* Absorbed: the query into the latent space, scores and sums there, and back. */
        k->read_bytes = n * past * record + kv_b;
        k->flops = n * h * (2 * 2 * d * lat + past * 2 * (2 * lat + r));
    } else {
        /* Expanded: keys and values of every position once, then causal attention over them. */
        double positions = past + n, pairs = n * past + n * (n + 1) / 2;
        k->read_bytes = positions * record + kv_b;
        k->flops = h * (positions * 2 * 2 * d * lat + pairs * 2 * (2 * d + r));
    }
    activations(k, n, h * (2 * d + r), h * d);
}

struct kernel_cost kernel_cost(const struct kernel_case *c, uint32_t experts) {
    struct kernel_cost k = {0};
    double n = c->n, out = c->out, in = c->in, pairs = n * c->top_k;
    switch (c->family) {
    case KERNEL_LINEAR:
        k.read_bytes = weight_bytes(c, out, in);
        k.flops = 2 * n * out * in;
        activations(&k, n, in, out);
        break;
    case KERNEL_EXPERTS_UP:
        k.read_bytes = 2 * experts * kernel_matrix_bytes(c->dtype, out, in);
        k.flops = 4 * pairs * out * in;
        activations(&k, n, in, c->top_k * out);
        break;
    case KERNEL_EXPERTS_DOWN:
        k.read_bytes = experts * kernel_matrix_bytes(c->dtype, out, in);
        k.flops = 2 * pairs * out * in + 2 * pairs * out;
        activations(&k, n, c->top_k * in, out);
        break;
    case KERNEL_KDA_STEP:
    case KERNEL_KDA_PREFILL:
    case KERNEL_KDA_TOKENS: kda_cost(&k, c); break;
    case KERNEL_MLA_DECODE:
    case KERNEL_MLA_PREFILL: mla_cost(&k, c); break;
    case KERNEL_MLA_WRITE: {
        double width = kernel_latent(c) + kernel_extra(c);
        k.write_bytes = kernel_matrix_bytes(c->dtype, n, width);
        k.flops = 4 * n * width;
        activations(&k, n, width, 0);
        break;
    }
    case KERNEL_MIX_NORM:
        k.flops = n * out * (6 * c->count + 11); /* two dots and a sum of each source, the norm */
        activations(&k, n, (c->count + 2) * out, 2 * out);
        break;
    case KERNEL_NORM:
        k.flops = 4 * n * out;
        activations(&k, n, out, out);
        break;
    case KERNEL_GLU:
        k.flops = 40 * n * out; /* three exponentials of about a dozen operations */
        activations(&k, n, 2 * out, out);
        break;
    case KERNEL_ROUTE:
        k.flops = n * c->count * 20.0;
        activations(&k, n, c->count, 2 * c->top_k);
        break;
    case KERNEL_EMBED:
        k.read_bytes = kernel_matrix_bytes(c->dtype, n, out);
        activations(&k, n, 0, out);
        break;
    }
    return k;
}
