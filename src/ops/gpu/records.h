/* records.h: the arguments of kernels, the same bytes for host, device and emulator. Every kernel
 * takes one record by value. Pointers are addresses on the device.
 *
 * Step buffers: what a product reads is BF16 (`uint16_t`), what it writes is f32 or BF16. Rows
 * begin at multiples of 16 bytes: a stride is a multiple of 8 (BF16) or 4 (f32) elements; what lies
 * between the last column and the next row is not touched. Vectors of weights (norms, taps) are
 * f32 and 16-byte aligned. */
#ifndef WEIR_OPS_GPU_RECORDS_H
#define WEIR_OPS_GPU_RECORDS_H

#include <stdint.h>

enum {
    GPU_ROW_MOST = 8192,     /* columns of a normed row */
    GPU_PARTS = 8,           /* products merged into one launch */
    GPU_SKINNY_ROWS = 64,    /* rows of x up to which products take W straight from memory */
    GPU_EXPERTS_MOST = 1024, /* experts a router chooses from */
    GPU_ROUTE_MOST = 32,     /* and of a row */
    GPU_TAPS_MOST = 4,       /* of the short convolution */
    GPU_KDA_DIM_MOST = 128,
    GPU_KDA_TOKENS_MOST = 8, /* of a sequence that verifies drafts */
    GPU_LATENT_MOST = 512,
    GPU_EXTRA_MOST = 64,
    GPU_KV_SCALED = 128,     /* values of FP8 history that share a scale */
    GPU_SHARES_MOST = 256,   /* of the positions of a sequence */
    GPU_MERGE_THREADS = 256, /* that put shares together */
    GPU_EXPERT_SLOTS = 2048, /* choices (rows times experts a row) that blocks sort themselves */
};

/* out[r] = w[ids[r]], rows of cols BF16, a multiple of 8; ids[r] < 0: zeros. A block a row. */
/* `pieces` of 16 bytes: what a device reads and writes at best, beside which kernels are judged. */
struct gpu_copy {
    const void *from;
    void *to;
    uint64_t pieces;
};

struct gpu_embed {
    const uint16_t *w;
    uint16_t *out;
    const int32_t *ids;
    uint32_t cols, stride;
};

/* An FP8 matrix (gpu_pack_fp8) as rows of BF16 without gaps: a code times its scale, rounded, which
 * costs a thirtieth of what the code had lost already. */
struct gpu_widen {
    const uint8_t *codes;
    uint16_t *to;
    const float *scales;
    uint32_t rows, cols; /* cols: a multiple of 8 */
};

/* y = act(gate) * up (struct glu, ops.h), BF16; y may be gate. A block a row and 2048 columns. */
struct gpu_glu {
    const uint16_t *gate, *up;
    uint16_t *y;
    uint32_t cols, gate_stride, up_stride, y_stride;
    uint32_t situ;
    float beta, linear_beta;
};

/* y = x * rsqrt(mean x^2 + eps) * norm, rows of f32 to rows of BF16. A block a row. */
struct gpu_norm {
    const float *x;
    uint16_t *y;
    const float *norm;
    uint32_t cols, x_stride, y_stride;
    float eps;
};

/* struct op_mix_norm (ops.h), with the prefix rounded to BF16 and stored as such, like the bank:
 * entry i at bank + i * bank_stride, its rows `stride` apart like those of the prefix; the launch
 * directly before wrote none of them. A row of `out` is a block's or a cluster's. */
struct gpu_mix_norm {
    uint16_t *prefix;
    const float *delta; /* NULL: none */
    uint16_t *bank;
    uint16_t *out;
    const float *c, *norm;
    const int32_t *gather; /* row i of out is of row gather[i]; NULL: of row i */
    uint64_t bank_stride;
    uint32_t rows, cols, stride, delta_stride, out_stride;
    uint32_t n_bank;
    uint8_t replace, push;
    uint8_t way; /* GPU_MIX_*, decided by the rules of launches unless it is set */
    float eps;
};
/* How rows go to blocks: one each, a cluster of so many each, or one after another. */
enum {
    GPU_MIX_BLOCK = 1,
    GPU_MIX_SPLIT_2,
    GPU_MIX_SPLIT_4 = 4,
    GPU_MIX_SPLIT_8 = 8,
    GPU_MIX_MANY,
};

/* Up to GPU_PARTS products y = W x (+ W2 x2) (+ y) of the same number of rows. W [rows, cols] BF16
 * as stored, cols a multiple of 8. Or FP8: rows of E4M3 codes, GPU_FP8_ROW(cols) bytes apart and
 * zero behind the last column, then of each row GPU_FP8_SCALES(cols) f32 scales, each of
 * GPU_FP8_SCALED columns; 16-byte aligned. A value is its code's times the scale. */
enum { GPU_FP8_SCALED = 128, GPU_FP8_X_ROWS = 32 /* of x that kernels take with them */ };
#define GPU_FP8_ROW(COLS)    (((COLS) + 15) / 16 * 16)
#define GPU_FP8_SCALES(COLS) (((COLS) + GPU_FP8_SCALED - 1) / GPU_FP8_SCALED)
struct gpu_linear_part {
    const uint16_t *w, *x;
    const uint16_t *w2, *x2; /* w2 NULL: none */
    float *y;                /* NULL: y16 */
    uint16_t *y16;
    uint32_t rows, cols, cols2;
    uint32_t x_stride, x2_stride, y_stride;
    /* One product for each of `steps` (gpu_linear), so many elements further: heads. */
    uint32_t w_step, x_step, y_step;
    const uint16_t *gate; /* rows gate_stride apart: a result is multiplied by sigmoid(gate); NULL:
                             none */
    uint32_t gate_stride;
    uint32_t first_block; /* the launch's blocks from here on do this part */
    uint32_t add;         /* to what y holds; of f32 results alone */
    uint16_t fp8, fp8_2;  /* W and W2 are codes and scales: both or none, and without steps */
};
struct gpu_linear {
    struct gpu_linear_part part[GPU_PARTS];
    uint32_t n_parts, x_rows;
    uint32_t steps; /* 0: one */
    uint32_t split; /* one row of x or two: waves that share a group of rows of W; divides the
                       waves of a block */
};

/* One token of one sequence. */
struct gpu_kda_seq {
    int32_t row; /* of the step buffers */
    int32_t from,
        slot; /* state before (-1: zero) and after; slot < 0: no sequence, zeros come out */
    int32_t checkpoint; /* the state after goes there too; -1: nowhere */
};
/* struct op_kda (ops.h) for sequences of one token. A state slot, at state + slot * slot_floats:
 * S [heads][value][key] f32, then the window [q, k, v][taps - 1, oldest first][heads * dim] BF16.
 * A block a head and sequence. */
struct gpu_kda_step {
    const uint16_t *q, *k, *v, *go;        /* rows `stride` apart */
    const uint16_t *b;                     /* rows b_stride apart */
    const uint16_t *z;                     /* rows z_stride apart */
    uint16_t *out;                         /* rows out_stride apart */
    const float *q_taps, *k_taps, *v_taps; /* [heads * dim, taps] */
    const float *ea, *dt, *o_norm;
    float *state; /* of this layer */
    uint64_t slot_floats;
    const struct gpu_kda_seq *seqs;
    uint32_t heads, taps;
    uint32_t stride, b_stride, z_stride, out_stride;
    float lower_bound, eps;
};

/* Several tokens of one sequence, of which it is not known yet how many will be kept. */
struct gpu_kda_draft {
    int32_t row, tokens; /* rows of the step buffers, GPU_KDA_TOKENS_MOST at most; tokens 0: what
                            was kept of the last ones goes into the state, and that is all */
    int32_t from, slot;  /* as in gpu_kda_seq: the state before, and behind the kept ones */
    int32_t left, kept;  /* where the launch before left its tokens; how many of them were kept */
    int32_t leave;       /* where this one leaves its own: another place */
    int32_t checkpoint, checkpoint_kept; /* the state behind so many of the kept ones, 1 at least,
                                            goes there too; -1: nowhere */
};
/* gpu_kda_step for drafts: states move on by what was kept of the last launch's tokens, outputs are
 * those of this launch's. What it leaves of a sequence, at left + leave * left_floats, is
 * gpu_kda_left_floats of launch.h, 16-byte aligned. A kept token leaves the same bits as one of
 * gpu_kda_step. Blocks are the same too. */
struct gpu_kda_verify {
    struct gpu_kda_step token; /* its seqs are not used */
    const struct gpu_kda_draft *drafts;
    float *left; /* of this layer */
    uint64_t left_floats;
};

/* struct op_route (ops.h). A block a row. */
struct gpu_route {
    const float *logits, *bias; /* bias NULL: none */
    int32_t *ids;
    float *weights;
    uint32_t rows, stride, experts, top_k, groups, top_groups;
    uint8_t softmax, renormalize;
    float scale;
};

/* struct op_mla_write (ops.h), BF16 or FP8 history (ops/kv.h). Record `position` of page `page` of
 * this layer is written from row i for place i; page < 0: none. A block a row. */
struct gpu_mla_place {
    int32_t page;
    uint32_t position; /* in the page */
};
struct gpu_mla_write {
    const float *kv;
    const float *norm;
    uint8_t *pool; /* of this layer */
    const struct gpu_mla_place *places;
    uint64_t page_bytes;
    uint32_t record_bytes;
    uint32_t kv_stride, latent, extra;
    uint32_t fp8;
    float eps;
};

/* Latent attention of single tokens in the absorbed form, in two launches of one record. `split`:
 * over a share of the positions, some heads of one row a block. qa: queries in latent space, head h
 * from h * latent on; q: the queries they were made from, of which `extra` values behind `nope`
 * ones are taken raw. Position t of a sequence is record t % 64 of page pages[first_page + t / 64]:
 * latent + extra BF16 values, both multiples of 8, or as FP8 (ops/kv.h). Share s of a sequence is
 * of positions from s * its `share` on; its sum, divided by that of its weights, goes to `part`,
 * and the base-2 logarithm of that sum to `lse`, both [rows][heads][shares]. How many shares there
 * may be is the launch's, how long they are the sequence's: so one graph serves sequences of any
 * length. `merge` puts the shares together: out [rows][heads * latent] BF16. A block a row and
 * `columns` latents of a head: 64, 128, 256 or 512. */
struct gpu_mla_seq {
    uint32_t row, positions, first_page; /* positions 0: no sequence, zeros come out */
    uint32_t share;                      /* positions, a multiple of 64 */
};
struct gpu_mla_decode {
    const uint16_t *qa, *q;
    const uint8_t *kv; /* of this layer */
    const struct gpu_mla_seq *seqs;
    const int32_t *pages;
    float *part, *lse;
    uint16_t *out;
    uint64_t page_bytes;
    uint32_t record_bytes, fp8;
    uint32_t heads, latent, extra, nope;
    uint32_t qa_stride, q_stride, q_step; /* q_step: from head to head */
    uint32_t shares, out_stride, columns;
    float scale;
};

/* Latent attention of many rows of sequences in the expanded form, in three launches: `gather`
 * copies records of pages as rows of BF16; a product with kv_b (gpu_linear) makes keys and values
 * of them; `attend` goes through these. The positions of a sequence are taken in pieces: what a row
 * has summed up to the end of one lies in `sum` and `state` until the next. A row is done in the
 * piece that has its own position, which is the last it sees. */
struct gpu_mla_span {
    uint32_t row0, rows, pos0; /* the sequence's rows, and the position of the first */
    uint32_t first_page;       /* of the sequence, in `pages` */
    uint32_t from, end;        /* positions of the piece; `from` is a multiple of 64 */
    uint32_t at;               /* row of `latents` and `kv` of position `from` */
    uint32_t pad;
};
enum { GPU_MLA_SPANS = 16 }; /* of a launch */
struct gpu_mla_prefill {
    const uint8_t *history; /* of this layer, as in gpu_mla_decode */
    const int32_t *pages;
    uint16_t *latents;    /* rows of latent + extra */
    const uint16_t *kv;   /* rows kv_stride apart: of head h `nope` key values, then v_dim values */
    const uint16_t *q;    /* rows q_stride apart, of head h from h * (nope + extra) on */
    const uint16_t *gate; /* rows gate_stride apart, as in gpu_linear_part; NULL: none */
    uint16_t *out;        /* rows out_stride apart: heads * v_dim */
    float *sum, *state;   /* [rows][heads][v_dim]; [rows][heads][2]: maximum, sum of weights */
    uint64_t page_bytes;
    uint32_t record_bytes, fp8;
    uint32_t heads, latent, extra, nope, v_dim;
    uint32_t kv_stride, q_stride, gate_stride, out_stride;
    uint32_t n_spans;
    float scale;
    struct gpu_mla_span span[GPU_MLA_SPANS];
};

/* One half of struct op_experts (ops.h). Weights of expert e are at w + e * w_stride as pack.h
 * says, of MXFP4 (cols a multiple of 32) or BF16 (of 8). Up: w1 and w3, x is z [slots / top_k], h
 * comes out; down: w2, x is h [slots], `each` comes out. A choice is a slot: row * top_k + j. */
struct gpu_experts {
    const uint8_t *w;
    const uint16_t *x;
    uint16_t *h;
    float *each;
    const int32_t *ids; /* [slots]; of few choices */
    uint64_t w_stride;
    uint32_t slots, top_k;
    uint32_t rows, cols, x_stride, out_stride;
    uint32_t situ; /* struct glu */
    float beta, linear_beta;
    uint32_t bf16;                   /* the weights are */
    const uint32_t *offsets, *order; /* of gpu_group; of many choices */
    uint32_t experts;
};
enum {
    GPU_PIECE_COLS = 128,
    GPU_PIECE_COLS_BF16 = 32,
    GPU_PIECE_VECTORS = 128,
    GPU_PIECE_BYTES_BF16 = GPU_PIECE_VECTORS * 16,
    GPU_PIECE_BYTES = GPU_PIECE_BYTES_BF16 + GPU_PIECE_VECTORS,
};

/* Choices by expert: those of expert e are order[offsets[e]] to order[offsets[e + 1] - 1],
 * ascending. A choice whose id is below 0 is nobody's. */
struct gpu_group {
    const int32_t *ids;        /* [slots] */
    uint32_t *offsets, *order; /* [experts + 1]; [slots] */
    uint32_t slots, experts;
};

/* out = sum over j of weights[j] each[j], j ascending, then * rsqrt(mean^2 + eps) * norm unless
 * norm is NULL. Either BF16 or f32 comes out. A row is a block's or a cluster's. */
struct gpu_combine {
    const float *each, *weights; /* [rows * top_k] rows; [rows, top_k] */
    uint16_t *out;               /* NULL: out32 */
    float *out32;
    const float *norm;
    uint32_t top_k, cols, each_stride, out_stride;
    float eps;
};

/* How the next token of a row is chosen: what struct sample_rules (sample.h) comes to where nothing
 * changes single logits. `point`: uniform in [0, 1). */
enum { GPU_DRAW_NOT, GPU_DRAW_BEST, GPU_DRAW };
struct gpu_draw {
    double point;
    float inverse; /* of the temperature */
    float min_p, top_p;
    uint32_t top_k; /* 0: all; at most GPU_SAMPLE_TOP */
    uint32_t how;   /* GPU_DRAW_NOT: nothing is asked of the row */
};
/* UNDECIDED: more tokens may be chosen than the kernel sorts; somebody else must draw. */
enum { GPU_DRAWN, GPU_DRAWN_NOT_FINITE, GPU_DRAWN_NOTHING_LEFT, GPU_DRAWN_UNDECIDED };
struct gpu_drawn {
    int32_t id; /* -1 unless GPU_DRAWN */
    uint32_t state;
};
/* sample_draw (sample.h): the same exponentials to the bit, in the same order of tokens; sums of
 * them are formed in another order, as f64. A row is a cluster's, blocks of 256 logits in turn. */
struct gpu_sample {
    const float *logits;
    const struct gpu_draw *draws;
    struct gpu_drawn *drawn;
    uint32_t vocab, stride;
    uint32_t members; /* blocks of a cluster; decided by the rules of launches unless it is set */
    uint32_t kept;    /* pieces of logits that a block keeps in shared memory; 0: none */
};

/* Rows of one sequence: struct batch_seq (ops.h), its checkpoints those of the list from
 * first_checkpoint on. */
struct gpu_kda_span {
    uint32_t row0, rows, pos0;
    int32_t from,
        slot; /* state before (-1: zero) and after; slot < 0: no sequence, zeros come out */
    uint32_t first_checkpoint, n_checkpoints;
};
/* State and window after `position` tokens of the sequence go to `slot` as well. Positions are
 * multiples of 64, or the sequence's end. */
struct gpu_kda_checkpoint {
    uint32_t position;
    int32_t slot;
};
/* struct op_kda (ops.h) for sequences of any number of rows, by chunks that end on multiples of 64
 * (32 with waves of 64) of the position. Slots are those of gpu_kda_step. All launches take the
 * same record: `chunks` forms what of a chunk does not depend on the state, a block a chunk and
 * head; `states` carries the state through the chunks, a block 16 (or 32) values of a head and
 * sequence; `out` norms and gates. No slot that one sequence writes may be read by another. */
struct gpu_kda_prefill {
    const uint16_t *q, *k, *v, *go;        /* rows `stride` apart */
    const uint16_t *b, *z;                 /* rows b_stride and z_stride apart */
    uint16_t *out;                         /* rows out_stride apart */
    const float *q_taps, *k_taps, *v_taps; /* [heads * dim, taps] */
    const float *ea, *dt, *o_norm;
    float *state; /* of this layer */
    uint64_t slot_floats;
    const struct gpu_kda_span *seqs;
    const struct gpu_kda_checkpoint *checkpoints;
    float *work; /* gpu_kda_prefill_bytes of launch.h, 16-byte aligned */
    uint32_t n_seqs, heads, dim, taps;
    uint32_t stride, b_stride, z_stride, out_stride;
    float lower_bound, eps;
};

/* --------------------------------------------------------------------------- shared memory
 * One struct a kernel; its size is what the launch asks for. Waves are counted for the narrower
 * kind, of which there are more. */
enum {
    GPU_MIX_SOURCES = 8,                    /* bank entries that are in registers at a time */
    GPU_MIX_SUMS = 2 * GPU_MIX_SOURCES + 2, /* dots, squares, those of the prefix */
    GPU_ROW_WAVES = 32,                     /* that share a row, of all blocks of a cluster */
    GPU_COMBINE_BATCH = 16,                 /* choices that are in registers at a time */
};

struct gpu_norm_shared {
    float sum[GPU_ROW_WAVES];
};
struct gpu_mix_norm_shared {
    float part[2][GPU_ROW_WAVES][GPU_MIX_SUMS];
    float square[GPU_ROW_WAVES];
};
/* Of weir_mix_norm_many pieces of 16 bytes come behind: these and the bank's, two of a thread. */
enum { GPU_MIX_PIECES = 7 };
/* Vectors of W on their way to each wave; a wave's sums, row of W, row of x. */
enum { GPU_GEMV_ROWS = 4 };
#define GPU_GEMV_SHARED(NAME, WAVE, STAGES)                                                        \
    struct NAME {                                                                                  \
        uint32_t ring[256 / WAVE][STAGES][GPU_GEMV_ROWS * WAVE][4];                                \
        float part[256 / WAVE][GPU_GEMV_ROWS * 2];                                                 \
    }
GPU_GEMV_SHARED(gpu_gemv_shared_32, 32, 4);
GPU_GEMV_SHARED(gpu_gemv_shared_64, 64, 3);
/* For more blocks a multiprocessor. */
GPU_GEMV_SHARED(gpu_gemv_more_shared_32, 32, 3);
GPU_GEMV_SHARED(gpu_gemv_more_shared_64, 64, 2);
struct gpu_kda_step_shared {
    float in[4][GPU_KDA_DIM_MOST]; /* q, k, v behind the convolution, decay */
    float o[GPU_KDA_DIM_MOST], squares[GPU_KDA_DIM_MOST / 16];
    uint16_t raw[3][GPU_TAPS_MOST - 1][GPU_KDA_DIM_MOST]; /* the window behind this token */
};
struct gpu_kda_verify_shared {
    float in[GPU_KDA_TOKENS_MOST][4][GPU_KDA_DIM_MOST];
    float kept[GPU_KDA_TOKENS_MOST][3][GPU_KDA_DIM_MOST]; /* of the last launch: k, decay, d */
    float o[GPU_KDA_TOKENS_MOST][GPU_KDA_DIM_MOST], d[GPU_KDA_TOKENS_MOST][GPU_KDA_DIM_MOST];
    float squares[GPU_KDA_TOKENS_MOST][GPU_KDA_DIM_MOST / 16];
    float beta[GPU_KDA_TOKENS_MOST], kq[GPU_KDA_TOKENS_MOST];
    uint16_t x[GPU_KDA_TOKENS_MOST][4][GPU_KDA_DIM_MOST]; /* projections: q, k, v, decay */
    uint16_t raw[3][GPU_TAPS_MOST - 1][GPU_KDA_DIM_MOST]; /* the window behind what was kept */
    uint16_t checkpoint[3][GPU_TAPS_MOST - 1][GPU_KDA_DIM_MOST];
};
struct gpu_route_shared {
    uint64_t best[8][GPU_ROUTE_MOST]; /* a wave's, falling: key, then the index upside down */
    float score[8][GPU_ROUTE_MOST], weight[GPU_ROUTE_MOST], part[2][8];
    float choice[GPU_EXPERTS_MOST]; /* biased scores; for groups alone */
};
enum {
    GPU_SAMPLE_BLOCK = 256, /* logits; the unit of summation of sample.c */
    GPU_SAMPLE_BLOCKS = 1024,
    GPU_SAMPLE_ROW = GPU_SAMPLE_BLOCK + 4, /* of shared memory, so that 32 of them begin in
                                              different banks */
    GPU_SAMPLE_MOST = 1024,                /* tokens that are sorted */
    GPU_SAMPLE_TOP = 192,
    GPU_SAMPLE_SEEN = 256,  /* logits that are shown to all members */
    GPU_SAMPLE_LEVELS = 16, /* halvings of the best token's weight */
    GPU_SAMPLE_MEMBERS = 8,
    GPU_SAMPLE_WAVES = 32, /* of a block; of a cluster four times as many */
};
struct gpu_sample_shared {
    uint64_t list[GPU_SAMPLE_MOST]; /* key, index upside down */
    double level[GPU_SAMPLE_MEMBERS][GPU_SAMPLE_LEVELS];
    double sum[2][GPU_SAMPLE_WAVES];
    float wave_level[GPU_SAMPLE_WAVES][GPU_SAMPLE_LEVELS];
    float part[GPU_SAMPLE_BLOCKS][4];
    uint32_t seen[GPU_SAMPLE_SEEN];
    uint32_t at[4 * GPU_SAMPLE_WAVES]; /* of a wave's best */
    float count[4 * GPU_SAMPLE_WAVES]; /* tokens that may be chosen; below 0: one
                                                           is no number */
    uint32_t most[GPU_SAMPLE_WAVES];
    uint32_t n, bound, unused[2]; /* what comes behind is a multiple of 16 bytes away */
};
/* Behind it: the logits that are kept, or room to sort in. */
struct gpu_sample_sort {
    uint64_t sorted[GPU_SAMPLE_MOST];
};

/* Choices by expert, at most GPU_EXPERT_FEW to an entry, of which an expert may have several: those
 * of entry i are order[first[i]] to order[first[i + 1] - 1]. */
enum { GPU_EXPERT_ENTRIES = GPU_EXPERTS_MOST + GPU_EXPERT_SLOTS / 8 };
struct gpu_expert_list {
    uint32_t n, sum[16]; /* of waves */
    uint16_t expert[GPU_EXPERT_ENTRIES], first[GPU_EXPERT_ENTRIES + 2];
    uint16_t order[GPU_EXPERT_SLOTS];
};
/* Pieces on their way to each wave; before them, how many choices each expert has. */
enum { GPU_EXPERT_STAGES = 3, GPU_EXPERT_WAVES_32 = 12, GPU_EXPERT_WAVES_64 = 4 };
#define GPU_EXPERTS_SHARED(NAME, WAVES)                                                            \
    struct NAME {                                                                                  \
        union {                                                                                    \
            uint8_t ring[WAVES][GPU_EXPERT_STAGES][GPU_PIECE_BYTES];                               \
            uint32_t count[GPU_EXPERTS_MOST];                                                      \
        };                                                                                         \
        struct gpu_expert_list list;                                                               \
    }
GPU_EXPERTS_SHARED(gpu_experts_shared_32, GPU_EXPERT_WAVES_32);
GPU_EXPERTS_SHARED(gpu_experts_shared_64, GPU_EXPERT_WAVES_64);
/* One row; what each wave has of the sums of two matrices. */
struct gpu_experts_row_shared {
    uint8_t ring[8][GPU_EXPERT_STAGES][GPU_PIECE_BYTES];
    float part[8][2][16];
};

/* Kernels of a few rows of x: name, tiles of W, rows of x, blocks a multiprocessor, stages with
 * waves of 32; with waves of 64 there is room for two. A stage of a wave: vectors of W, then of x;
 * in place of all stages, later, its sums: row of x, row of W. */
#define GPU_SKINNY_KERNELS(X)                                                                      \
    X(skinny_8, 1, 8, 4, 4)                                                                        \
    X(skinny_16, 1, 16, 3, 4)                                                                      \
    X(skinny_32, 1, 32, 2, 4)                                                                      \
    X(skinny_64, 1, 64, 1, 4)                                                                      \
    X(skinny_8_two, 2, 8, 2, 5)                                                                    \
    X(skinny_8_wide, 3, 8, 2, 3)                                                                   \
    X(skinny_16_wide, 3, 16, 2, 3)                                                                 \
    X(skinny_32_wide, 4, 32, 1, 4)                                                                 \
    X(skinny_64_wide, 4, 64, 1, 3)
#define GPU_SKINNY_SHARED(NAME, TILES, ROWS, BLOCKS, STAGES)                                       \
    struct gpu_##NAME##_shared_32 {                                                                \
        union {                                                                                    \
            uint32_t ring[8][STAGES][(2 * TILES + ROWS / 8) * 32][4];                              \
            float part[8][ROWS][TILES * 16 + 4];                                                   \
        };                                                                                         \
    };                                                                                             \
    struct gpu_##NAME##_shared_64 {                                                                \
        union {                                                                                    \
            uint32_t ring[4][2][(TILES + (ROWS + 15) / 16) * 64][4];                               \
            float part[4][(ROWS + 15) / 16 * 16][TILES * 16];                                      \
        };                                                                                         \
    };
GPU_SKINNY_KERNELS(GPU_SKINNY_SHARED)

/* The same of FP8 matrices: stages with waves of 32 and of 64. A stage has 64 columns: a vector of
 * codes where BF16 has one of 32 columns, and two of x. Parts that are BF16 have stages of theirs.
 */
#define GPU_SKINNY_FP8_KERNELS(X)                                                                  \
    X(skinny_fp8_8, 1, 8, 3, 4, 2)                                                                 \
    X(skinny_fp8_16, 1, 16, 3, 3, 2)                                                               \
    X(skinny_fp8_32, 1, 32, 2, 2, 2)                                                               \
    X(skinny_fp8_8_wide, 3, 8, 2, 3, 2)                                                            \
    X(skinny_fp8_16_wide, 2, 16, 2, 3, 2)                                                          \
    X(skinny_fp8_32_wide, 4, 32, 1, 3, 2)
#define GPU_SKINNY_FP8_SHARED(NAME, TILES, ROWS, BLOCKS, STAGES_32, STAGES_64)                     \
    struct gpu_##NAME##_shared_32 {                                                                \
        union {                                                                                    \
            uint32_t ring[8][STAGES_32][(2 * TILES + ROWS / 4) * 32][4];                           \
            uint32_t bf16[8][STAGES_32 > 1 ? STAGES_32 : 2][(2 * TILES + ROWS / 8) * 32][4];       \
            float part[8][ROWS][TILES * 16 + 4];                                                   \
        };                                                                                         \
    };                                                                                             \
    struct gpu_##NAME##_shared_64 {                                                                \
        union {                                                                                    \
            uint32_t ring[4][STAGES_64][(TILES + (ROWS + 15) / 16 * 2) * 64][4];                   \
            uint32_t bf16[4][2][(TILES + (ROWS + 15) / 16) * 64][4];                               \
            float part[4][(ROWS + 15) / 16 * 16][TILES * 16];                                      \
        };                                                                                         \
    };
GPU_SKINNY_FP8_KERNELS(GPU_SKINNY_FP8_SHARED)

/* Rows of a chunk, and what its block and one of the states have in shared memory; `keys` of them:
 * the dimensions of a key, 32 at least. */
enum { GPU_KDA_ROWS_32 = 64, GPU_KDA_ROWS_64 = 32, GPU_KDA_KEYS_LEAST = 32 };
/* parts: of x times beta. l and x are zero above the diagonal: blocks of 16 below it, (0,0), (1,0),
 * (1,1), ... */
#define GPU_KDA_CHUNK_SHARED(NAME, ROWS)                                                           \
    struct NAME {                                                                                  \
        float q[ROWS][GPU_KDA_DIM_MOST + 4];                                                       \
        float k[ROWS][GPU_KDA_DIM_MOST + 4];                                                       \
        union {                                                                                    \
            float g[ROWS][GPU_KDA_DIM_MOST + 4];                                                   \
            struct {                                                                               \
                float x[(ROWS) / 16 * ((ROWS) / 16 + 1) / 2][16][16 + 4];                          \
                uint16_t parts[2][ROWS][(ROWS) + 8];                                               \
            };                                                                                     \
        };                                                                                         \
        float l[(ROWS) / 16 * ((ROWS) / 16 + 1) / 2][16][16 + 4];                                  \
        float beta[ROWS];                                                                          \
        uint32_t steep;                                                                            \
    }
GPU_KDA_CHUNK_SHARED(gpu_kda_chunk_shared_32, GPU_KDA_ROWS_32);
GPU_KDA_CHUNK_SHARED(gpu_kda_chunk_shared_64, GPU_KDA_ROWS_64);
/* Rows half a turn of the banks apart. */
struct gpu_kda_states_shared {
    uint16_t s[2][16][GPU_KDA_DIM_MOST + 32];
    uint16_t v[3][16][GPU_KDA_ROWS_32 + 32];
};

/* Pieces of chunks on their way, in the order in which they are used; decays beside the first piece
 * of keys. */
enum {
    GPU_KDA_WG_VALUES = 32, /* of a block */
    GPU_KDA_WG_THREADS = 160,
    GPU_KDA_WG_PIECE = GPU_KDA_ROWS_32 * GPU_KDA_DIM_MOST,
    GPU_KDA_WG_SLOTS = 13,
};
struct gpu_kda_states_wg_shared {
    uint16_t piece[GPU_KDA_WG_SLOTS][GPU_KDA_WG_PIECE];
    float decay[GPU_KDA_WG_SLOTS][GPU_KDA_DIM_MOST];
    uint64_t full[GPU_KDA_WG_SLOTS], empty[GPU_KDA_WG_SLOTS];
};

/* Rows of latents are one 16-byte piece longer than they need to be: eight of them, read side by
 * side, then lie in different banks. */
enum { GPU_MLA_ROW = GPU_LATENT_MOST + GPU_EXTRA_MOST + 8, GPU_MLA_HEADS = 16 };
#define GPU_MLA_SHARED(NAME, POSITIONS, STAGES)                                                    \
    struct NAME {                                                                                  \
        uint16_t kv[STAGES][POSITIONS][GPU_MLA_ROW];                                               \
        uint16_t q[GPU_MLA_HEADS][GPU_MLA_ROW];                                                    \
        uint16_t p[GPU_MLA_HEADS][POSITIONS + 8];                                                  \
        float s[2][GPU_MLA_HEADS][POSITIONS];                                                      \
        float factor[GPU_MLA_HEADS];                                                               \
    }
/* Devices with waves of 32 have room for two tiles, so that one comes while the other is used. */
GPU_MLA_SHARED(gpu_mla_shared_32, 64, 2);
GPU_MLA_SHARED(gpu_mla_shared_64, 32, 1);
/* Panels of warpgroups: two tiles of positions, queries of so many heads, weights. Scores are as
 * many sums as there is room for, one or two, their rows four floats longer than they need to be,
 * so that lanes of a product leave them in different banks. */
enum { GPU_MLA_PANELS = (GPU_LATENT_MOST + GPU_EXTRA_MOST) / 64 };
#define GPU_MLA_WG_SHARED(NAME, HEADS, SCORES)                                                     \
    struct NAME {                                                                                  \
        uint16_t kv[2][GPU_MLA_PANELS][64][64];                                                    \
        uint16_t q[GPU_MLA_PANELS][HEADS][64];                                                     \
        uint16_t p[HEADS][64];                                                                     \
        float s[SCORES][HEADS][64 + 4];                                                            \
        float factor[HEADS];                                                                       \
        uint64_t gate[4];                                                                          \
    }
GPU_MLA_WG_SHARED(gpu_mla_wg_16_shared, 16, 2);
GPU_MLA_WG_SHARED(gpu_mla_wg_48_shared, 48, 1);
/* FP8 history: pages as they are, weights times the scales of each quarter of the latents for each
 * of three warpgroups, maxima and totals of their waves. */
enum {
    GPU_MLA_FP8_STAGES = 4,
    GPU_MLA_FP8_GROUPS = 3,
    GPU_MLA_FP8_PAGE =
        64 * (GPU_LATENT_MOST + GPU_LATENT_MOST / GPU_KV_SCALED * 4 + GPU_EXTRA_MOST * 2),
};
struct gpu_mla_fp8_wg_shared {
    uint8_t raw[GPU_MLA_FP8_STAGES][GPU_MLA_FP8_PAGE];
    uint16_t q[GPU_MLA_PANELS][16][64];
    uint16_t p[GPU_MLA_FP8_GROUPS][4][16][64];
    float top[GPU_MLA_FP8_GROUPS][16][4], total[GPU_MLA_FP8_GROUPS][16][4];
    float lift[16]; /* of queries, and what it takes away again */
    float sunk[16];
    uint64_t full[GPU_MLA_FP8_STAGES], empty[GPU_MLA_FP8_STAGES];
};
/* Two warpgroups that attend and one that copies; with FP8 history three and one. */
enum { GPU_MLA_WG_THREADS = 384, GPU_MLA_FP8_WG_THREADS = 512 };
/* Keys and values of 64 positions, weights of 16 rows for each of four waves. */
enum { GPU_KEY_MOST = 192, GPU_VALUE_MOST = 128 };
struct gpu_mla_attend_shared {
    uint16_t key[64][GPU_KEY_MOST + 8];
    uint16_t value[64][GPU_VALUE_MOST + 8];
    uint16_t p[4][16][64 + 8];
};
/* Panels of 128 rows; two stages of 128 positions. */
struct gpu_mla_attend_wg_shared {
    uint16_t q[3][128][64];
    uint16_t key[2][3][128][64];
    uint16_t value[2][2][128][64];
    uint64_t key_full[2], key_empty[2], value_full[2], value_empty[2];
};
enum { GPU_MLA_ATTEND_WG_THREADS = 384 };
struct gpu_mla_merge_shared {
    float weight[GPU_SHARES_MOST];
    float sum[GPU_MERGE_THREADS * 4];
};

/* Stages of tiles: rows of x, then rows of W, of so many columns; later a band of 16 rows of sums
 * for each wave. A device with waves of 64 has 64 KiB and copies through registers. */
enum {
    GPU_TILE_K_32 = 64,
    GPU_TILE_K_64 = 32,
    GPU_TILE_STAGES_32 = 3,
    GPU_TILE_STAGES_64 = 2,
    GPU_BAND_PAD = 4,
};
#define GPU_GEMM_SHARED(NAME, ROWS, COLS, WAVES, K, STAGES)                                        \
    struct NAME {                                                                                  \
        union {                                                                                    \
            uint16_t tile[STAGES][ROWS][K + 8];                                                    \
            float band[WAVES][16][COLS + GPU_BAND_PAD];                                            \
        };                                                                                         \
    }
GPU_GEMM_SHARED(gpu_gemm_192_shared_32, 192 + 128, 64, 8, GPU_TILE_K_32, GPU_TILE_STAGES_32);
GPU_GEMM_SHARED(gpu_gemm_192_shared_64, 192 + 128, 64, 8, GPU_TILE_K_64, GPU_TILE_STAGES_64);
GPU_GEMM_SHARED(gpu_gemm_128_shared_32, 128 + 64, 32, 4, GPU_TILE_K_32, GPU_TILE_STAGES_32);
GPU_GEMM_SHARED(gpu_gemm_128_shared_64, 128 + 64, 32, 4, GPU_TILE_K_64, GPU_TILE_STAGES_64);

/* Products by warpgroups: name, rows of W of a tile, stages of panels of x and W (dialect.h),
 * hundredths of a microsecond for 64 columns of a tile on an H200. A tile has GPU_GEMM_WG_X rows of
 * x; the blocks of a cluster have tiles one below the other along x. */
#define GPU_GEMM_WG_KERNELS(X)                                                                     \
    X(gemm_wg, 192, 5, 60)                                                                         \
    X(gemm_wg_176, 176, 5, 55)                                                                     \
    X(gemm_wg_128, 128, 6, 44)                                                                     \
    X(gemm_wg_64, 64, 8, 33)
enum { GPU_GEMM_WG_X = 128, GPU_GEMM_WG_MEMBERS = 2, GPU_GEMM_WG_THREADS = 384 };
#define GPU_GEMM_WG_SHARED(NAME, W, STAGES, TIME)                                                  \
    struct gpu_##NAME##_shared {                                                                   \
        uint16_t stage[STAGES][GPU_GEMM_WG_X + W][64];                                             \
        uint32_t map[GPU_GEMM_WG_THREADS / 32][32]; /* where each wave makes maps */               \
        uint64_t full[STAGES], empty[STAGES];                                                      \
    };
GPU_GEMM_WG_KERNELS(GPU_GEMM_WG_SHARED)

enum { GPU_GROUP_EXPERTS = 8 }; /* of a block */
struct gpu_group_shared {
    uint32_t count[8][GPU_GROUP_EXPERTS + 1]; /* a wave's; the last: of experts before the block's
                                               */
};

/* Choices of a tile of many, and rows of W that a block takes at a time: 16 a wave. Rows of x are
 * four 16-byte pieces longer than they need to be: two of them, read in groups of four pieces side
 * by side, then lie in different banks. */
enum {
    GPU_MANY_TILE_32 = 128,
    GPU_MANY_TILE_64 = 64,
    GPU_MANY_WAVES = 8,
    GPU_MANY_ROWS = 16 * GPU_MANY_WAVES,
    GPU_MANY_GROUPS = 4, /* of rows that a block takes one after another */
};
struct gpu_many_choices {
    uint32_t slot[GPU_MANY_TILE_32], from[GPU_MANY_TILE_32]; /* and their rows of x */
    uint32_t expert, base, n;
};
#define GPU_MANY_SHARED(NAME, CHOICES, STAGES)                                                     \
    struct NAME {                                                                                  \
        uint16_t x[STAGES][CHOICES][128 + 32];                                                     \
        float band[16][GPU_MANY_ROWS + GPU_BAND_PAD];                                              \
        struct gpu_many_choices choices;                                                           \
    }
GPU_MANY_SHARED(gpu_many_shared_32, GPU_MANY_TILE_32, 3);
GPU_MANY_SHARED(gpu_many_shared_64, GPU_MANY_TILE_64, 2);

/* The same by warpgroups: stages of 128 columns of x, two panels each; of each wave that
 * multiplies, sums of 16 choices on their way out; gates of the stages, and one that lets the
 * second warpgroup begin. Further waves bring x. */
enum { GPU_MANY_WG_STAGES = 5, GPU_MANY_WG_THREADS = GPU_MANY_WAVES * 32 + 128 };
struct gpu_many_wg_shared {
    uint16_t x[GPU_MANY_WG_STAGES][2][GPU_MANY_TILE_32][64];
    float band[GPU_MANY_WAVES][2][16][32 + GPU_BAND_PAD];
    uint64_t full[GPU_MANY_WG_STAGES], empty[GPU_MANY_WG_STAGES], begun;
    struct gpu_many_choices choices;
};

#endif
