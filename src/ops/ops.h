/* ops.h: the vocabulary of operations a step is made of, and their argument records.
 *
 * A column (ref = the exact one, cpu = the fast ones) implements every record the step program of
 * its kind uses. Operations never allocate, log, read options or fail: forward/ checks shapes when
 * it builds the program. Every function is called by all members of a team at once and takes its
 * own share of the work from `struct work`; the caller puts a barrier before and behind it.
 *
 * Step buffers are f32, row-major, one row per token of the batch. Rows with a negative slot do not
 * exist: a batch holds real tokens only, padding is a matter of the column. Dimension names: H
 * hidden, P heads*dim of the KDA mixer, C kv_lora, R rope_dim (64 further key dims, never rotated
 * in this family), D nope_dim, V v_dim. */
#ifndef WEIR_OPS_OPS_H
#define WEIR_OPS_OPS_H

#include "base/dtype.h"
#include "base/team.h"
#include "weir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OP_MAX_BANK = 63 }; /* entries of the attention-residual bank */
enum {
    PAGE_TOKENS = 64
}; /* positions of one MLA page; also the unit of resume points; chunks of KDA end there */

/* A step buffer or a part of its columns: element (r, c) is data[r * stride + c]. data == NULL:
 * absent. */
struct tensor {
    float *data;
    uint32_t cols, stride;
};

static inline float *tensor_row(struct tensor t, size_t row) {
    return t.data + row * t.stride;
}

/* Layouts that fast columns read matrices in: pack.h. */
enum packing { PACK_NONE, PACK_BF16, PACK_INT8, PACK_FP8, PACK_MXFP4 };

/* A weight matrix [rows, cols] as stored in the checkpoint, row-major; y = W x. data == NULL:
 * absent, or of an expert that is kept packed alone. MXFP4: data = packed codes [rows, cols/2],
 * scale = [rows, cols/32]. */
struct weight {
    const void *data;
    const uint8_t *scale;
    enum dtype dtype;
    uint32_t rows, cols;
    enum packing packing; /* of `packed`; PACK_NONE: products read the stored form */
    const void *packed;   /* the same numbers (of INT8 and FP8: rounded) in the column's layout; of
                             a column on a device NULL: it is made there */
};

/* ----------------------------------------------------------------------------------------------------------------
 * batch */

/* Ask the KDA layers to write the state after `position` tokens of the sequence into `slot` as
 * well. */
struct batch_checkpoint {
    uint32_t position; /* in (pos0, pos0 + rows] of its sequence */
    int32_t slot;
};

/* The rows of one sequence in this step: tokens at positions pos0 .. pos0+rows-1. */
struct batch_seq {
    uint32_t row0, rows;
    uint32_t pos0;
    uint32_t kept;        /* history of positions below is in its pages already, perhaps shared with
                             others: it is read and not written */
    const int32_t *pages; /* page i holds positions 64i..64i+63; covers pos0+rows tokens; its tail
                             page is written */
    int32_t slot;         /* KDA state after the last row goes here */
    int32_t from; /* state before the first row: a slot (often the same), or -1 for the zero state
                   */
    uint32_t n_checkpoints;
    const struct batch_checkpoint *checkpoints; /* ascending positions */
};

struct sample_state; /* sample.h */

/* What is wanted of one logits row. */
struct batch_logits {
    uint32_t row;               /* row of the batch whose output is read */
    struct sample_state *state; /* draw the next token by these rules; NULL: score only */
    int32_t target;             /* state == NULL: the id to report the logprob of */
    int32_t n_top;              /* best ids to report, -1: no logprobs at all */
};

enum {
    ID_FROM_PREVIOUS = INT32_MIN
}; /* ids[row] = ID_FROM_PREVIOUS + i: the token drawn at logits row i of the batch before */

/* One step. Sequences with a single row come first (they decode), then those with several. All
 * arrays are the caller's and stay untouched until the step has been collected. */
struct batch {
    uint32_t n_rows;
    const int32_t *ids; /* [n_rows] */
    uint32_t n_seqs,
        n_decode; /* seqs[0..n_decode) have one row each and rows 0..n_decode-1 in order */
    const struct batch_seq *seqs;
    uint32_t n_logits;
    const struct batch_logits *logits;
};

/* Member `index` of `count` of the team, its own scratch memory (struct column: scratch_bytes), and
 * memory that all members share (shared_bytes). An operation of several passes is called once for
 * each, and the team meets in between; shared memory keeps its contents from pass to pass.
 * An operation divides its work in one of two ways: work_span gives each member the same share
 * every time, work_next gives more to those that come further. */
struct work {
    uint32_t index, count;
    void *scratch;
    struct team *team; /* that runs the operation; NULL: work_next is work_span */
    uint32_t visited;  /* work_next's place; 0 when the operation is called */
    uint32_t pass;
    void *shared;
    uint32_t variant; /* of the operation on this batch; column_run sets it */
};

/* The half-open range of `units` that this member does: contiguous, balanced, the same for every
 * call with equal arguments. */
struct span {
    uint32_t begin, end;
};
static inline struct span work_span(struct work w, uint32_t units) {
    uint64_t u = units;
    return (struct span){(uint32_t)(u * w.index / w.count),
                         (uint32_t)(u * (w.index + 1) / w.count)};
}
/* The next range of `units` for this member; false when nothing is left for it. Over all members
 * each unit comes exactly once: first most of the member's own share, in ascending ranges, then
 * what slower members have not begun. Once per pass of an operation (`units` the same for all
 * members), as ranges of two loops would be taken for one. For columns in which no result depends
 * on who computes what beside it:
 *     for (struct span s; work_next(&work, rows, &s);) ...
 */
static inline bool work_next(struct work *w, uint32_t units, struct span *s) {
    if (w->team)
        return team_claim(w->team, w->index, units, &w->visited, &s->begin, &s->end);
    *s = work_span(*w, units);
    return w->visited++ == 0 && s->begin < s->end;
}

/* ----------------------------------------------------------------------------------------------------
 * pools of the cache */

/* MLA history: page p, MLA layer l (counted among MLA layers), position t (0..63): C+R values, the
 * normed latent then the raw extra key, at data + p*page_bytes + (l*64 + t) * kv_record_bytes.
 * dtype F32, BF16 or FP8: ops/kv.h. */
struct kv_pool {
    unsigned char *data;
    enum dtype dtype;
    size_t page_bytes;
    uint32_t width; /* C + R */
};

/* KDA states: slot s, KDA layer l (counted among KDA layers), at data + s*slot_floats +
 * l*layer_floats: S [heads][dim key][dim value], then the convolution window [3 (q,k,v)][taps-1,
 * oldest first][P], pre-activation inputs. */
struct state_pool {
    float *data;
    size_t slot_floats, layer_floats;
};

/* ---------------------------------------------------------------------------------------------------------------
 * records */

/* out[r] = W[ids[r]] widened. */
struct op_embed {
    struct weight w; /* [vocab, H] BF16 or F32 */
    struct tensor out;
};

/* The residual stream between two sublayers. With prefix P and bank B_0..B_{n-1}, per row:
 *   1. P = delta (replace) or P + delta;                              delta absent: P as it is
 *   2. m = softmax-weighted sum of [B_0..B_{n-1}, P], scores s_i = dot(V_i, c) * rsqrt(mean V_i^2 +
 * eps); n == 0: m = P
 *   3. push: B_n = P                                                  the prefix before this
 * sublayer, never the mixture
 *   4. out = m * rsqrt(mean m^2 + eps) * norm
 * round_prefix: P is rounded to bf16 in step 1 (what every bf16 implementation banks).
 * gather: rows are read through batch.logits[i].row and written to row i of out; P + delta is
 * formed for those rows alone and not stored, replace and push are not allowed.
 * mixed, if present, receives m (taps of tests and drafts).
 * Source: docs/model.md, attention residuals. */
struct op_mix_norm {
    struct tensor prefix, delta, out, mixed;
    const struct tensor *bank; /* [n_bank + push] */
    uint32_t n_bank;
    bool replace, push, round_prefix, gather;
    const float *c;    /* [H] res norm weight * res proj weight */
    const float *norm; /* [H] */
    float eps;
};

/* y = W x (+ W2 x2) (+ y), for up to OP_LINEAR_PARTS weights at once; the row space of all parts is
 * shared out together. The rows of each part are every batch row, or the logits rows. */
enum { OP_LINEAR_PARTS = 8 };
struct linear_part {
    struct weight w, w2; /* w2.data NULL: none */
    struct tensor x, x2, y;
    bool add; /* y is there already and is added to, after W2 x2 */
};
struct op_linear {
    uint32_t n_parts;
    bool logit_rows; /* false: batch.n_rows rows, true: batch.n_logits */
    struct linear_part part[OP_LINEAR_PARTS];
};

/* Gated activation parameters: a*u with
 * SILU: a = g*sigmoid(g), u = up;  SITU: a = beta*tanh(g/beta)*sigmoid(g) (uncapped g in the
 * sigmoid), u = lbeta*tanh(up/lbeta) (lbeta == 0: u = up). */
struct glu {
    bool situ;
    float beta, linear_beta;
};

/* y[r] = act(gate[r]) * up[r], elementwise; y may be gate. */
struct op_glu {
    struct glu act;
    struct tensor gate, up, y;
};

/* RMS norm of rows: y = x * rsqrt(mean x^2 + eps) * norm; y may be x. */
struct op_norm {
    struct tensor x, y;
    const float *norm;
    float eps;
};

/* One KDA mixer after its projections: short convolution + SiLU of q, k, v; L2 norms and scale;
 * gates; delta rule; gated norm. Per head, per token, in this order: S = diag(exp g) S; u = beta (v
 * - S^T k); S += k u^T; o = S^T q; out = o * rsqrt(mean o^2 + eps) * o_norm * sigmoid(go).   g =
 * L*sigmoid(ea*(z+dt)) or -ea*softplus(z+dt). One record serves decode (sequences 0..n_decode) and
 * prefill (the others); `which` selects. The state before the first row comes from seq.from, the
 * one after the last row goes to seq.slot, and one to each checkpoint: S *and* window. Source:
 * docs/model.md, KDA. */
enum seq_class { SEQ_ALL, SEQ_DECODE, SEQ_PREFILL };
struct op_kda {
    enum seq_class which;
    struct tensor q, k, v;                 /* [rows, P] projections, before the convolution */
    struct tensor z;                       /* [rows, P] f_b(f_a(x)) */
    struct tensor b;                       /* [rows, heads] */
    struct tensor go;                      /* [rows, P] output gate, before the sigmoid */
    struct tensor out;                     /* [rows, P] */
    const float *q_taps, *k_taps, *v_taps; /* [P, taps], last tap = current token */
    const float *ea;                       /* [heads] exp(A_log) */
    const float *dt;                       /* [P] */
    const float *o_norm;                   /* [dim] */
    float lower_bound;                     /* L < 0, or 0 for the softplus gate */
    float eps;
    uint32_t heads, dim, taps;
    const struct state_pool *pool;
    uint32_t layer; /* among KDA layers */
};

/* Writes the history of this step's rows: latent normed over its C values, the R extra values raw,
 * into the pages. */
struct op_mla_write {
    struct tensor kv;  /* [rows, C+R] kv_a projection */
    const float *norm; /* [C] */
    float eps;
    const struct kv_pool *pool;
    uint32_t layer, kv_lora;
};

/* Gated latent attention of each row over its sequence's pages (its own position included), causal.
 * decode form (absorbed): qa = Qn^T WUK; score = (qa.c + Qx.kx)*scale; ol = sum p c; O = WUV ol
 * prefill form (expanded): K, V = kv_b c per head, then ordinary attention.  Both: out = O *
 * sigmoid(g) (g absent: O). Softmax in f32. Source: docs/model.md, MLA. */
struct op_mla {
    enum seq_class which;
    struct tensor q;    /* [rows, heads*(D+R)]: per head D nope then R extra */
    struct tensor g;    /* [rows, heads*V] or absent */
    struct tensor out;  /* [rows, heads*V] */
    struct weight kv_b; /* [heads*(D+V), C]: per head D key rows then V value rows */
    float scale;
    const struct kv_pool *pool;
    uint32_t layer, heads, nope_dim, rope_dim, v_dim, kv_lora;
};

/* Chooses experts from router logits: s = sigmoid (or softmax); choice by s + bias, ties to the
 * lower index; weights are the unbiased s, renormalised over the chosen (sum + 1e-20), times scale.
 * Groups: see docs/model.md. Chosen in falling order of biased score. Writes ids as int32 and
 * weights as f32. */
struct op_route {
    struct tensor logits; /* [rows, experts] */
    const float *bias;    /* [experts] or NULL */
    int32_t *ids;         /* [rows, top_k] */
    float *weights;       /* [rows, top_k] */
    uint32_t experts, top_k, groups, top_groups;
    bool softmax, renormalize;
    float scale;
};

/* The routed experts: h = act(w1 z, w3 z) for each chosen (row, j); then out[row] = sum_j weight_j
 * * (w2 h_j), j ascending. Two records, so that the team meets between them: up fills h
 * [rows*top_k, inter], down reads it. */
enum expert_part { EXPERT_UP, EXPERT_DOWN }; /* w1 and w3, or w2: what one operation reads */
struct op_experts;
/* Weights of experts that are not all in memory. Every member calls `begin` first, with the same n
 * different experts, and then goes through them in the order it gives (indices into `experts`,
 * valid until the next begin): it acquires those it has work on, and releases every one, acquired
 * or not. An expert may leave memory once all members have released it, so nobody holds more than
 * one at a time. `acquire` waits until it is there and fills w (EXPERT_UP: w1, w3; EXPERT_DOWN:
 * w2); false: it cannot be read, its results are left as they are, and whoever runs the step learns
 * of it from the source. */
struct expert_source {
    void *self;
    const uint32_t *(*begin)(void *self, const struct op_experts *a, enum expert_part part,
                             const uint32_t *experts, uint32_t n, uint32_t n_rows, struct work w);
    bool (*acquire)(void *self, const struct op_experts *a, enum expert_part part, uint32_t expert,
                    const struct weight *w[2]);
    void (*release)(void *self, const struct op_experts *a, enum expert_part part, uint32_t expert);
    /* Behind a step, by one thread: false, and why, if an expert of it could not be read. */
    bool (*settle)(void *self, weir_error *err);
};

struct op_experts {
    struct tensor z;    /* [rows, width] */
    struct tensor h;    /* [rows*top_k, inter], row r*top_k + j */
    struct tensor out;  /* [rows, width] */
    struct tensor each; /* [rows*top_k, width]: the experts' single outputs before the sum */
    const struct weight *w1, *w2, *w3; /* [experts] each; with a source without data: shapes only */
    const int32_t *ids;
    const float *weights;
    uint32_t experts, top_k;
    struct glu act;
    const struct expert_source *source; /* NULL: all are in memory */
    uint32_t layer;                     /* for the source */
    const int32_t *ahead; /* [rows, top_k] for the source: a guess of the choices of layer
                             `ahead_layer`, made in batches of at most `ahead_rows` rows; NULL: none
                           */
    uint32_t ahead_layer, ahead_rows;
};

/* Weights of one expert for the operation that reads `part`. */
static inline bool expert_acquire(const struct op_experts *a, enum expert_part part,
                                  uint32_t expert, const struct weight *w[2]) {
    if (a->source)
        return a->source->acquire(a->source->self, a, part, expert, w);
    w[0] = part == EXPERT_UP ? &a->w1[expert] : &a->w2[expert];
    w[1] = part == EXPERT_UP ? &a->w3[expert] : NULL;
    return true;
}
static inline void expert_release(const struct op_experts *a, enum expert_part part,
                                  uint32_t expert) {
    if (a->source)
        a->source->release(a->source->self, a, part, expert);
}

/* Draws or scores at every logits row: rules in ops/sample.h. */
struct sample_result;
struct op_sample {
    struct tensor logits;          /* [n_logits, vocab] */
    struct sample_result *results; /* [max logits] */
};

enum op_kind {
    OP_EMBED,
    OP_MIX_NORM,
    OP_LINEAR,
    OP_GLU,
    OP_NORM,
    OP_KDA_DECODE,  /* recurrence, token by token */
    OP_KDA_PREFILL, /* chunks */
    OP_MLA_WRITE,
    OP_MLA_DECODE,  /* absorbed */
    OP_MLA_PREFILL, /* expanded */
    OP_ROUTE,
    OP_EXPERTS_UP,
    OP_EXPERTS_DOWN,
    OP_SAMPLE,
    OP_COUNT,
};

/* Batches by how many rows an operation works on: what is fastest for one class need not be for
 * another. */
enum row_class {
    ROWS_1,
    ROWS_2,
    ROWS_4,  /* 3 and 4 */
    ROWS_8,  /* 5 to 8 */
    ROWS_16, /* 9 to 16 */
    ROWS_64, /* 17 to 64 */
    ROWS_MORE,
    ROW_CLASSES
};

struct op {
    enum op_kind kind;
    int32_t layer;                /* -1: none */
    uint32_t most_rows;           /* left out in larger batches; 0: never */
    uint8_t variant[ROW_CLASSES]; /* numbers of the column's variants; 0: its default */
    union {
        struct op_embed embed;
        struct op_mix_norm mix_norm;
        struct op_linear linear;
        struct op_glu glu;
        struct op_norm norm;
        struct op_kda kda;
        struct op_mla_write mla_write;
        struct op_mla mla;
        struct op_route route;
        struct op_experts experts;
        struct op_sample sample;
    } u;
};

const char *op_name(enum op_kind kind);
/* OP_COUNT: no operation has this name. */
enum op_kind op_named(const char *name);
/* Rows of the batch that the operation works on: those of its sequences, or the logits rows; 0:
 * nothing to do. */
uint32_t op_rows(const struct op *op, const struct batch *b);
enum row_class row_class_of(uint32_t rows); /* rows > 0 */
/* "1", "2", "3-4", "5-8", "9-16", "17-64", "65-". */
const char *row_class_name(enum row_class c);
/* ROW_CLASSES: no class has this name. */
enum row_class row_class_named(const char *name);
/* All that the speed of an operation depends on beside its rows, as text: the shapes and formats of
 * its matrices, heads and their widths. Two operations with equal kinds and signatures are tuned as
 * one. */
enum { OP_SIGNATURE = 320 };
void op_signature(const struct op *op, char out[OP_SIGNATURE]);

/* ---------------------------------------------------------------------------------------------------------------
 * columns */

/* How activations enter a product with a weight. BF16: rounded to it. INT8: in groups with a scale
 * each, where the weight is MXFP4 or INT8; rounded to BF16 for others. Weights stored as F32 always
 * meet F32 activations. */
enum activation {
    ACTIVATION_F32,
    ACTIVATION_BF16,
    ACTIVATION_INT8,
    ACTIVATIONS,
    ACTIVATION_DEFAULT = ACTIVATION_F32 /* the fastest that keeps every golden prompt within the
                                           bf16 bound */
};
/* The instructions that bound the products of a column. */
enum arithmetic {
    ARITHMETIC_F32,
    ARITHMETIC_BF16,
    ARITHMETIC_INT8,
    ARITHMETIC_AMX_BF16,
    ARITHMETICS
};
/* What BF16 matrices are turned into when a checkpoint is loaded. */
enum dense_form { DENSE_BF16, DENSE_INT8, DENSE_FP8 };

/* Another way of a column to do an operation: a size of tiles, a way to share the work out. Which
 * one is the fastest is a matter of the machine; load/tuning.h keeps what was measured. */
struct variant {
    const char *name;
    uint8_t number; /* in op.variant, above 0 */
    bool same_bits; /* as the default's; else equal to them within the column's rounding */
};
enum { OP_VARIANTS = 10 };

/* One implementation of the vocabulary. An entry that is NULL is found when the program is built.
 */
struct column {
    const char *name;
    enum activation activation;
    enum arithmetic arithmetic[ACTIVATIONS]; /* by how the activations meet a weight */
    /* The layout the column wants for a matrix; NULL: stored form for all. */
    enum packing (*packing)(const struct weight *, enum dense_form);
    bool chunked;      /* prefill as KDA chunks and expanded MLA; false: recurrence and absorbed
                          attention for every row */
    bool round_prefix; /* the explicit BF16 rounding of the residual prefix */
    bool device;       /* a GPU runs all operations but `sample`: forward/device.h */
    void (*embed)(const struct op_embed *, const struct batch *, const int32_t *ids, struct work);
    void (*mix_norm)(const struct op_mix_norm *, const struct batch *, struct work);
    void (*linear)(const struct op_linear *, const struct batch *, struct work);
    void (*glu)(const struct op_glu *, const struct batch *, struct work);
    void (*norm)(const struct op_norm *, const struct batch *, struct work);
    void (*kda_decode)(const struct op_kda *, const struct batch *, struct work);
    void (*kda_prefill)(const struct op_kda *, const struct batch *, struct work);
    void (*mla_write)(const struct op_mla_write *, const struct batch *, struct work);
    void (*mla_decode)(const struct op_mla *, const struct batch *, struct work);
    void (*mla_prefill)(const struct op_mla *, const struct batch *, struct work);
    void (*route)(const struct op_route *, const struct batch *, struct work);
    void (*experts_up)(const struct op_experts *, const struct batch *, struct work);
    void (*experts_down)(const struct op_experts *, const struct batch *, struct work);
    void (*sample)(const struct op_sample *, const struct batch *, struct work);
    /* Scratch bytes one member needs for this operation in a batch of at most max_rows rows,
     * max_position tokens history. */
    size_t (*scratch_bytes)(const struct op *, uint32_t max_rows, uint32_t max_position);
    /* Bytes that a team of so many members shares during this operation. NULL: none. */
    size_t (*shared_bytes)(const struct op *, uint32_t max_rows, uint32_t threads);
    /* Passes that this operation takes over this batch, the same for every member. NULL: one. */
    uint32_t (*passes)(const struct op *, const struct batch *);
    /* The variants this column has of an operation, beside its default, that may be faster on
     * batches of this class; returns how many. NULL: none of anything. */
    uint32_t (*variants)(const struct op *, enum row_class, struct variant out[OP_VARIANTS]);
};

/* The first and one past the last sequence that an operation of this class works on. */
static inline struct span batch_class(const struct batch *b, enum seq_class which) {
    switch (which) {
    case SEQ_ALL: return (struct span){0, b->n_seqs};
    case SEQ_DECODE: return (struct span){0, b->n_decode};
    case SEQ_PREFILL: return (struct span){b->n_decode, b->n_seqs};
    }
    return (struct span){0, 0};
}

/* Plain C, one order of every sum whatever threads, batch or chunking: the truth. */
extern const struct column column_ref;
/* What a GPU computes: BF16 operands, sums, norms and states f32. Programs built for it run once
 * they have been moved to a device (program_to_device). */
extern const struct column column_gpu;
/* The fastest column this processor runs with these activations. */
const struct column *column_fast(enum activation activation);
/* How often column_run is to be called for this operation, with a barrier behind each call. */
static inline uint32_t column_passes(const struct column *c, const struct op *op,
                                     const struct batch *b) {
    return c->passes ? c->passes(op, b) : 1;
}
static inline size_t column_shared_bytes(const struct column *c, const struct op *op,
                                         uint32_t max_rows, uint32_t threads) {
    return c->shared_bytes ? c->shared_bytes(op, max_rows, threads) : 0;
}
/* The variants of an operation; how many. */
static inline uint32_t column_variants(const struct column *c, const struct op *op,
                                       enum row_class rows, struct variant out[OP_VARIANTS]) {
    return c->variants ? c->variants(op, rows, out) : 0;
}
/* The number of the variant of this name, or 0. */
uint8_t column_variant(const struct column *c, const struct op *op, enum row_class rows,
                       const char *name);
/* Runs one operation's share of one member in one pass. `ids` are the batch's with references to
 * the step before resolved. */
void column_run(const struct column *c, const struct op *op, const struct batch *b,
                const int32_t *ids, struct work w);

#endif
