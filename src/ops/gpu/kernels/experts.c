/* experts.c: routed experts with MXFP4 or BF16 weights for few rows, where every chosen expert is
 * read once for up to GPU_FEW choices.
 *
 * Waves go through pairs of tiles of all chosen experts, each through a share of its own, whose
 * pieces lie one behind the other in memory. They come through stages in shared memory, which hold
 * more than registers could; nobody waits for another wave on the way. Unpacking codes is most of
 * the work: what surrounds it is kept small (pack.h).
 *
 * Choices are sorted by expert first, by every block for itself: no launch before does it. */
#include "ops/gpu/kernels/experts.h"

enum {
    STREAM_THREADS = GPU_WAVE * (GPU_WAVE == 32 ? GPU_EXPERT_WAVES_32 : GPU_EXPERT_WAVES_64),
    ROW_THREADS = 256,
    STAGES = GPU_EXPERT_STAGES,
    IDS = (GPU_EXPERT_SLOTS + STREAM_THREADS - 1) / STREAM_THREADS,  /* of a thread */
    EACH = (GPU_EXPERTS_MOST + STREAM_THREADS - 1) / STREAM_THREADS, /* experts of a thread */
};
#if GPU_WAVE == 32
typedef struct gpu_experts_shared_32 experts_shared;
#else
typedef struct gpu_experts_shared_64 experts_shared;
#endif

/* ------------------------------------------------------------------------------- choices */

/* Sums over the threads before this one; *all: over the block. */
GPU_FN uint32_t sum_before(struct gpu_expert_list *l, uint32_t v, uint32_t *all) {
    const uint32_t mine = v;
    for (uint32_t d = 1; d < GPU_WAVE; d *= 2) {
        const uint32_t other = gpu_shuffle_u32(v, (gpu_lane() - d) % GPU_WAVE);
        v += gpu_lane() >= d ? other : 0;
    }
    if (gpu_lane() == GPU_WAVE - 1)
        l->sum[gpu_wave()] = v;
    gpu_barrier();
    uint32_t before = v - mine;
    *all = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++) {
        before += w < gpu_wave() ? l->sum[w] : 0;
        *all += l->sum[w];
    }
    return before;
}

/* A row's experts are all different. */
GPU_FN void list_row(const struct gpu_experts *a, struct gpu_expert_list *l) {
    for (uint32_t i = gpu_thread(); i <= a->slots; i += STREAM_THREADS) {
        l->first[i] = (uint16_t)i;
        if (i == a->slots)
            continue;
        l->expert[i] = (uint16_t)a->ids[i];
        l->order[i] = (uint16_t)i;
    }
    if (gpu_thread() == 0)
        l->n = a->slots;
    gpu_barrier();
}
GPU_FN void list_choices(const struct gpu_experts *a, experts_shared *s) {
    struct gpu_expert_list *l = &s->list;
    int32_t id[IDS];
    uint32_t at[IDS], entries = 0, choices = 0, all;
    if (a->slots == a->top_k) {
        list_row(a, l);
        return;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < IDS; i++) { /* all are asked for before the first is looked at */
        const uint32_t slot = i * STREAM_THREADS + gpu_thread();
        id[i] = slot < a->slots ? a->ids[slot] : -1;
    }
    for (uint32_t e = gpu_thread(); e < a->experts; e += STREAM_THREADS)
        s->count[e] = 0;
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t i = 0; i < IDS; i++) {
        at[i] = 0;
        if (id[i] >= 0)
            at[i] = gpu_atomic_add(&s->count[id[i]], 1);
    }
    gpu_barrier();
    const uint32_t begin = gpu_thread() * EACH;
    const uint32_t end = begin + EACH < a->experts ? begin + EACH : a->experts;
    for (uint32_t e = begin; e < end; e++) {
        entries += (s->count[e] + GPU_FEW - 1) / GPU_FEW;
        choices += s->count[e];
    }
    const uint32_t before = sum_before(l, entries << 16 | choices, &all);
    uint32_t entry = before >> 16, first = before & 0xFFFFu;
    for (uint32_t e = begin; e < end; e++) {
        const uint32_t n = s->count[e];
        s->count[e] = n << 16 | first; /* and where its choices begin */
        for (uint32_t c = 0; c < n; c += GPU_FEW) {
            l->expert[entry] = (uint16_t)e;
            l->first[entry++] = (uint16_t)(first + c);
        }
        first += n;
    }
    if (gpu_thread() == 0) {
        l->n = all >> 16;
        l->first[all >> 16] = (uint16_t)(all & 0xFFFFu);
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t i = 0; i < IDS; i++) {
        if (id[i] >= 0)
            l->order[(s->count[id[i]] & 0xFFFFu) + at[i]] =
                (uint16_t)(i * STREAM_THREADS + gpu_thread());
    }
    gpu_barrier();
    /* Choices that fill several entries in order: which are in which must be the same for all
     * blocks, and who came first is not. */
    GPU_UNROLL
    for (uint32_t i = 0; i < IDS; i++) {
        const uint32_t slot = i * STREAM_THREADS + gpu_thread();
        const uint32_t count = id[i] >= 0 ? s->count[id[i]] : 0;
        at[i] = GPU_EXPERT_SLOTS;
        if (count >> 16 <= GPU_FEW)
            continue;
        at[i] = count & 0xFFFFu;
        for (uint32_t c = 0; c < count >> 16; c++)
            at[i] += l->order[(count & 0xFFFFu) + c] < slot ? 1 : 0;
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t i = 0; i < IDS; i++)
        if (at[i] < GPU_EXPERT_SLOTS)
            l->order[at[i]] = (uint16_t)(i * STREAM_THREADS + gpu_thread());
    gpu_barrier();
}

/* ------------------------------------------------------------------------------- pieces */

GPU_FN void fetch_piece(uint8_t *stage, const uint8_t *from, const bool bf16) {
    const uint32_t vectors = piece_bytes(bf16) / 16;
    GPU_UNROLL
    for (uint32_t v = 0; v < vectors; v += GPU_WAVE)
        if (v + gpu_lane() < vectors)
            gpu_copy16(stage + (v + gpu_lane()) * 16, from + (v + gpu_lane()) * 16, true);
}

/* What a lane needs of its choice of x, two products ahead; x_cols 0: there is no choice. */
struct piece_x {
    const uint16_t *x;
    uint32_t cols;
    struct gpu_u4 ahead[2];
};
GPU_FN void load_x(struct piece_x *x, const uint32_t i, uint32_t k) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    x->ahead[i] = none;
    if (k < x->cols)
        x->ahead[i] = gpu_load16(x->x + k);
}
GPU_FN void begin_x(struct piece_x *x, uint32_t piece, const bool bf16) {
    GPU_UNROLL
    for (uint32_t j = 0; j < (bf16 ? 1u : 2u); j++)
        load_x(x, j, piece * piece_cols(bf16) + lane_col(bf16) + j * 8);
}

/* Products of a piece of codes. */
GPU_FN void multiply_codes(float (*acc)[GPU_FEW_SUMS], const uint8_t *stage,
                           const uint32_t (*scale)[GPU_STRIPS], struct piece_x *x, uint32_t piece) {
    struct gpu_u4 codes[PAIR][GPU_STRIPS];
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            codes[m][i] = gpu_load16(stage + lane_vector(m, i) * 16);
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const struct gpu_u4 b = x->ahead[j % 2];
        load_x(x, j % 2,
               (piece + (j + 2) / 4) * GPU_PIECE_COLS + lane_col(false) + (j + 2) % 4 * 8);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            struct gpu_strips strips;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++)
                strips.row[i] = widen_codes(word_of(codes[m][i], j), scale_pair(scale[m][i]));
            gpu_mma_few(acc[m], &strips, b);
        }
    }
}
/* The same where some scale is above 128, so that its factor takes a second multiplication: rare,
 * and so without haste. */
GPU_FN void multiply_large(float (*acc)[GPU_FEW_SUMS], const uint8_t *stage,
                           const uint32_t (*scale)[GPU_STRIPS], struct piece_x *x, uint32_t piece) {
    const uint32_t k = piece * GPU_PIECE_COLS + lane_col(false);
    GPU_ROLLED
    for (uint32_t j = 0; j < 4; j++) {
        load_x(x, 0, k + j * 8);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            struct gpu_strips strips;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                const uint32_t *codes = (const uint32_t *)(stage + lane_vector(m, i) * 16);
                strips.row[i] = times_pairs(widen_codes(codes[j], scale_pair(scale[m][i])),
                                            scale_more(scale[m][i]));
            }
            gpu_mma_few(acc[m], &strips, x->ahead[0]);
        }
    }
    begin_x(x, piece + 1, false);
}
GPU_FN void multiply_piece(float (*acc)[GPU_FEW_SUMS], const uint8_t *stage, struct piece_x *x,
                           uint32_t piece, const bool bf16) {
    if (bf16) {
        const struct gpu_u4 b = x->ahead[0];
        begin_x(x, piece + 1, true);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            struct gpu_strips strips;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++)
                strips.row[i] = gpu_load16(stage + lane_vector(m, i) * 16);
            gpu_mma_few(acc[m], &strips, b);
        }
        return;
    }
    uint32_t scale[PAIR][GPU_STRIPS], any = 0;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            scale[m][i] = stage[GPU_PIECE_BYTES_BF16 + lane_vector(m, i)];
            any |= scale[m][i];
        }
    }
    if (gpu_ballot(any > 128)) /* at least if one is */
        multiply_large(acc, stage, scale, x, piece);
    else
        multiply_codes(acc, stage, scale, x, piece);
}

GPU_FN void clear_sums(float (*acc)[GPU_FEW_SUMS]) {
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
            acc[m][i] = 0;
    }
}

/* ------------------------------------------------------------------------------- all choices */

/* The pieces that a wave has yet to ask for. */
struct stream {
    const uint8_t *from;
    uint32_t entry, left_of_entry, left;
};
GPU_FN void fetch_next(const struct gpu_experts *a, const struct gpu_expert_list *l,
                       struct stream *m, uint8_t *stage, uint32_t pieces_of_expert,
                       const bool bf16) {
    if (m->left) {
        if (!m->left_of_entry) {
            m->entry++;
            m->from = a->w + l->expert[m->entry] * a->w_stride;
            m->left_of_entry = pieces_of_expert;
        }
        fetch_piece(stage, m->from, bf16);
        m->from += piece_bytes(bf16);
        m->left_of_entry--;
        m->left--;
    }
    gpu_copy_commit();
}

/* Results of a pair of tiles, of the `n` choices whose order is at `order`. */
GPU_FN void put_pair(const struct gpu_experts *a, const uint16_t *order, uint32_t n, uint32_t pair,
                     float (*acc)[GPU_FEW_SUMS], const bool up) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_FEW_SUMS; i++) {
        if (gpu_sum_col(i) >= n)
            continue;
        const uint64_t at = (uint64_t)order[gpu_sum_col(i)] * a->out_stride;
        if (up) {
            const uint32_t row = pair * TILE + gpu_sum_row(i);
            if (row < a->rows)
                a->h[at + row] = gpu_to_bf16(activate(a, acc[0][i], acc[1][i]));
            continue;
        }
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            const uint32_t row = (pair * PAIR + m) * TILE + gpu_sum_row(i);
            if (row < a->rows)
                a->each[at + row] = acc[m][i];
        }
    }
}

/* Down: who chose what was known before h was, so that weights are asked for above the wait for the
 * kernel before, which made h. */
GPU_FN void experts_stream(const struct gpu_experts *a, experts_shared *s, const bool up,
                           const bool bf16) {
    const struct gpu_expert_list *l = &s->list;
    const uint32_t rows = up ? TILE : TILE * PAIR, pairs = (a->rows + rows - 1) / rows;
    const uint32_t pieces = (a->cols + piece_cols(bf16) - 1) / piece_cols(bf16);
    const uint32_t waves = gpu_blocks_x() * gpu_waves();
    const uint32_t wave = gpu_block_x() * gpu_waves() + gpu_wave();
    if (up) {
        gpu_wait_previous();
        gpu_launch_next();
    }
    list_choices(a, s);
    const uint64_t work = (uint64_t)l->n * pairs;
    const uint32_t begin = (uint32_t)(work * wave / waves);
    const uint32_t end = (uint32_t)(work * (wave + 1) / waves);
    uint32_t entry = begin / pairs, pair = begin % pairs;
    uint8_t *ring = s->ring[gpu_wave()][0];
    struct stream m;
    m.entry = entry;
    m.left_of_entry = (pairs - pair) * pieces;
    m.left = (end - begin) * pieces;
    m.from = a->w;
    if (begin < end)
        m.from += l->expert[entry] * a->w_stride + (uint64_t)pair * pieces * piece_bytes(bf16);
    GPU_UNROLL
    for (uint32_t t = 0; t < STAGES; t++)
        fetch_next(a, l, &m, ring + t * GPU_PIECE_BYTES, pairs * pieces, bf16);
    if (!up) {
        gpu_wait_previous();
        gpu_launch_next();
    }
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t at = begin; at < end; at++) {
        const uint32_t first = l->first[entry], n = l->first[entry + 1] - first;
        float acc[PAIR][GPU_FEW_SUMS];
        struct piece_x x = {a->x, 0, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
        clear_sums(acc);
        if (gpu_strip_row(0) < n) {
            const uint32_t slot = l->order[first + gpu_strip_row(0)];
            x.x += (uint64_t)(up ? slot / a->top_k : slot) * a->x_stride;
            x.cols = a->cols;
        }
        begin_x(&x, 0, bf16);
        GPU_ROLLED
        for (uint32_t piece = 0; piece < pieces; piece++) {
            uint8_t *stage = ring + here * GPU_PIECE_BYTES;
            gpu_copy_wait(GPU_EXPERT_STAGES - 1);
            gpu_wave_meet(); /* what other lanes copied is there */
            multiply_piece(acc, stage, &x, piece, bf16);
            gpu_wave_meet(); /* nobody reads it any more */
            fetch_next(a, l, &m, stage, pairs * pieces, bf16);
            here = here + 1 < STAGES ? here + 1 : 0;
        }
        put_pair(a, l->order + first, n, pair, acc, up);
        if (++pair == pairs) {
            pair = 0;
            entry++;
        }
    }
    gpu_copy_wait(0);
}

GPU_KERNEL(weir_experts_up, gpu_experts, STREAM_THREADS, 2) {
    GPU_SHARED(experts_shared, s);
    experts_stream(&a, s, true, false);
}
GPU_KERNEL(weir_experts_up_bf16, gpu_experts, STREAM_THREADS, 2) {
    GPU_SHARED(experts_shared, s);
    experts_stream(&a, s, true, true);
}
GPU_KERNEL(weir_experts_down, gpu_experts, STREAM_THREADS, 2) {
    GPU_SHARED(experts_shared, s);
    experts_stream(&a, s, false, false);
}
GPU_KERNEL(weir_experts_down_bf16, gpu_experts, STREAM_THREADS, 2) {
    GPU_SHARED(experts_shared, s);
    experts_stream(&a, s, false, true);
}

/* ------------------------------------------------------------------------------- one row, up */

/* So few choices do not fill a device with waves: those of a block share the columns of a pair. */
GPU_FN void experts_up_row(const struct gpu_experts *a, struct gpu_experts_row_shared *s,
                           const bool bf16) {
    const uint32_t slot = gpu_block_y(), pair = gpu_block_x(), wave = gpu_wave();
    const uint32_t pieces = (a->cols + piece_cols(bf16) - 1) / piece_cols(bf16);
    const uint32_t begin = wave * pieces / gpu_waves(), end = (wave + 1) * pieces / gpu_waves();
    uint8_t *ring = s->ring[wave][0];
    struct piece_x x = {a->x, 0, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    float acc[PAIR][GPU_FEW_SUMS];
    gpu_wait_previous();
    gpu_launch_next();
    const uint8_t *from = a->w + (uint64_t)(uint32_t)a->ids[slot] * a->w_stride +
                          ((uint64_t)pair * pieces + begin) * piece_bytes(bf16);
    GPU_UNROLL
    for (uint32_t t = 0; t < STAGES; t++) {
        if (begin + t < end)
            fetch_piece(ring + t * GPU_PIECE_BYTES, from + t * piece_bytes(bf16), bf16);
        gpu_copy_commit();
    }
    clear_sums(acc);
    x.cols = gpu_strip_row(0) == 0 ? a->cols : 0;
    begin_x(&x, begin, bf16);
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t piece = begin; piece < end; piece++) {
        uint8_t *stage = ring + here * GPU_PIECE_BYTES;
        gpu_copy_wait(GPU_EXPERT_STAGES - 1);
        gpu_wave_meet();
        multiply_piece(acc, stage, &x, piece, bf16);
        gpu_wave_meet();
        if (piece + STAGES < end)
            fetch_piece(stage, from + (piece + STAGES - begin) * piece_bytes(bf16), bf16);
        gpu_copy_commit();
        here = here + 1 < STAGES ? here + 1 : 0;
    }
    gpu_copy_wait(0);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
            if (gpu_sum_col(i) == 0)
                s->part[wave][m][gpu_sum_row(i)] = acc[m][i];
    }
    gpu_barrier();
    const uint32_t row = pair * TILE + gpu_thread();
    if (gpu_thread() >= TILE || row >= a->rows)
        return;
    float gate = 0, up = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++) {
        gate += s->part[w][0][gpu_thread()];
        up += s->part[w][1][gpu_thread()];
    }
    a->h[(uint64_t)slot * a->out_stride + row] = gpu_to_bf16(activate(a, gate, up));
}
GPU_KERNEL(weir_experts_up_row, gpu_experts, ROW_THREADS, 3) {
    GPU_SHARED(struct gpu_experts_row_shared, s);
    experts_up_row(&a, s, false);
}
GPU_KERNEL(weir_experts_up_row_bf16, gpu_experts, ROW_THREADS, 3) {
    GPU_SHARED(struct gpu_experts_row_shared, s);
    experts_up_row(&a, s, true);
}
