/* gemm_wgmma.c: the products of gemm.c by warpgroups: tiles of 128 rows of x, 64 for each of two
 * warpgroups, by 192 rows of W or fewer. A thread of a third asks for panels of both, in boxes,
 * several stages ahead; gates say when a stage is full and when it is empty again. Blocks of a
 * cluster have tiles one below the other and share their rows of W: each asks for some and has them
 * sent to all, so that the second-level cache gives less.
 *
 * Blocks stay: each takes tiles until there are no more, and the first stages of a tile come while
 * results of the one before it leave, straight from registers. Chains of products end after CHAIN
 * panels (gemm.c), those of the two warpgroups at different times, so that one multiplies while the
 * other adds.
 * Invariant that bites: a stage is filled by all blocks of a cluster, so that it must be empty in
 * all of them, and none may end while another sends or tells it something. */
#include "ops/gpu/kernels/gemm.h"

enum {
    X_ROWS = GPU_GEMM_WG_X,
    K = 64, /* of a panel */
    MEMBERS = GPU_GEMM_WG_MEMBERS,
    CHAIN = 512 / K,
    SUMS_MOST = 192 / 2,
    MULTIPLYING = 256, /* threads; those behind them bring what they need */
};

#ifdef GPU_WARPGROUPS

/* What a kernel is made for, constants, and its shared memory. */
struct room {
    uint16_t (*stage)[64]; /* of each x_rows and wide rows */
    uint64_t *full, *empty;
    uint32_t wide, stages;
};
GPU_FN uint16_t *x_of_stage(const struct room *s, uint32_t at) {
    return &s->stage[at * (X_ROWS + s->wide)][0];
}
GPU_FN uint16_t *w_of_stage(const struct room *s, uint32_t at) {
    return x_of_stage(s, at) + X_ROWS * K;
}
GPU_FN uint32_t behind(const struct room *s, uint32_t at) {
    return at + 1 < s->stages ? at + 1 : 0;
}

/* Where a block's work lies. */
struct tile {
    uint32_t p, step;       /* of the parts, of the launch's steps */
    uint32_t x0, w0;        /* the block's first rows */
    uint32_t first, panels; /* of the first term, of both */
};
/* Tiles of all members together. */
GPU_FN uint32_t all_tiles(const struct gpu_linear *a, const uint32_t wide) {
    const uint32_t last = a->n_parts - 1;
    return a->part[last].first_block + (a->x_rows + MEMBERS * X_ROWS - 1) / (MEMBERS * X_ROWS) *
                                           ((a->part[last].rows + wide - 1) / wide);
}
GPU_FN struct tile tile_at(const struct gpu_linear *a, uint32_t number, const uint32_t wide) {
    struct tile t;
    t.step = number / all_tiles(a, wide);
    number %= all_tiles(a, wide);
    t.p = 0;
    for (uint32_t i = 1; i < a->n_parts; i++)
        t.p = number >= a->part[i].first_block ? i : t.p;
    const struct gpu_linear_part *part = &a->part[t.p];
    t.first = (part->cols + K - 1) / K;
    t.panels = t.first + (part->w2 ? (part->cols2 + K - 1) / K : 0);
    gemm_place(a, part, number - part->first_block, &t.x0, &t.w0, MEMBERS * X_ROWS, wide);
    t.x0 += gpu_cluster_rank() * X_ROWS;
    return t;
}

/* Maps 4p to 4p + 3: x and W of both terms of part p, by the waves of the block in turn. */
GPU_FN void make_maps(const struct gpu_linear *a, uint32_t (*scratch)[32], const uint32_t wide) {
    const uint32_t steps = a->steps ? a->steps : 1;
    struct gpu_map *map = (struct gpu_map *)scratch[gpu_wave()];
    for (uint32_t i = gpu_wave(); i < 4 * a->n_parts; i += gpu_waves()) {
        const struct gpu_linear_part *part = &a->part[i / 4];
        const uint32_t term = i / 2 % 2, cols = term ? part->cols2 : part->cols;
        if (term && !part->w2)
            continue;
        if (i % 2 == 0)
            gpu_map_make(map, i, term ? part->x2 : part->x, cols, a->x_rows,
                         2ull * (term ? part->x2_stride : part->x_stride), steps,
                         steps > 1 ? 2ull * part->x_step : 16, X_ROWS);
        else
            gpu_map_make(map, i, term ? part->w2 : part->w, cols, part->rows, 2ull * cols, steps,
                         steps > 1 ? 2ull * part->w_step : 16, wide / MEMBERS);
    }
}

/* Stage after stage, tile after tile. By one thread. */
GPU_FN void bring(const struct gpu_linear *a, const struct room *s, uint32_t tiles) {
    const uint32_t share = s->wide / MEMBERS, from = gpu_cluster_rank() * share;
    const struct gpu_map *map_x = 0, *map_w = 0;
    uint32_t at = 0, parity = 1, mapped = ~0u;
    GPU_ROLLED
    for (uint32_t n = gpu_block_x() / MEMBERS; n < tiles; n += gpu_blocks_x() / MEMBERS) {
        const struct tile t = tile_at(a, n, s->wide);
        GPU_ROLLED
        for (uint32_t i = 0; i < t.panels; i++) {
            const uint32_t term = i >= t.first ? 1 : 0, k0 = (i - (term ? t.first : 0)) * K;
            const uint32_t maps = 4 * t.p + 2 * term;
            if (maps != mapped) {
                map_x = gpu_map_made(maps);
                map_w = gpu_map_made(maps + 1);
                mapped = maps;
            }
            gpu_gate_wait(&s->empty[at], parity);
            gpu_gate_expect(&s->full[at], (X_ROWS + s->wide) * K * 2);
            gpu_copy_box(x_of_stage(s, at), map_x, k0, t.x0, t.step, &s->full[at]);
            gpu_copy_box_to_all(w_of_stage(s, at) + from * K, map_w, k0, t.w0 + from, t.step,
                                &s->full[at], MEMBERS);
            at = behind(s, at);
            parity ^= at == 0;
        }
    }
}

/* One result. */
GPU_FN void put_one(const struct gpu_linear_part *part, uint64_t row, uint64_t col, float sum) {
    if (part->gate)
        sum *= gpu_sigmoid(gpu_from_bf16(part->gate[row * part->gate_stride + col]));
    const uint64_t at = row * part->y_stride + col;
    if (part->y)
        part->y[at] = part->add ? part->y[at] + sum : sum;
    else
        part->y16[at] = gpu_to_bf16(sum);
}
/* Pairs of results of a row, 8 columns apart, from `col` on, those of the first `left` columns, n
 * of them. What is needed of all is asked for before any is used. */
GPU_FN void put_pairs(const struct gpu_linear_part *part, uint64_t row, uint64_t col, uint32_t left,
                      float (*sum)[2], const uint32_t n) {
    const uint64_t at = row * part->y_stride + col;
    if (part->gate) {
        const uint16_t *gate = part->gate + row * part->gate_stride + col;
        GPU_UNROLL
        for (uint32_t i = 0; i < n; i++)
            if (8 * i + 1 < left) {
                const uint32_t pair = *(const uint32_t *)(gate + 8 * i);
                sum[i][0] *= gpu_sigmoid(gpu_bf16_lo(pair));
                sum[i][1] *= gpu_sigmoid(gpu_bf16_hi(pair));
            }
    }
    if (!part->y) {
        uint16_t *y = part->y16 + at;
        GPU_UNROLL
        for (uint32_t i = 0; i < n; i++)
            if (8 * i + 1 < left)
                *(uint32_t *)(y + 8 * i) = gpu_bf16_pair(sum[i][0], sum[i][1]);
        return;
    }
    float *y = part->y + at;
    if (part->add) {
        GPU_UNROLL
        for (uint32_t i = 0; i < n; i++)
            if (8 * i + 1 < left) {
                const struct gpu_u2 more = gpu_load8(y + 8 * i);
                sum[i][0] += gpu_as_f32(more.x);
                sum[i][1] += gpu_as_f32(more.y);
            }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < n; i++)
        if (8 * i + 1 < left)
            gpu_store8(y + 8 * i, gpu_as_u32(sum[i][0]), gpu_as_u32(sum[i][1]));
}
/* This thread's sums of its first row of x (r 0) or its second, where they belong. */
GPU_FN void put_row(const struct gpu_linear *a, const struct tile *t, uint32_t row,
                    const uint32_t r, const float *sum, const uint32_t wide) {
    const struct gpu_linear_part *part = &a->part[t->p];
    const uint32_t w_row = t->w0 + gpu_wg_col(0), left = part->rows - w_row;
    const uint64_t col = (uint64_t)t->step * part->y_step + w_row;
    float pair[SUMS_MOST / 4][2], last = 0;
    if (row >= a->x_rows || w_row >= part->rows)
        return;
    GPU_UNROLL
    for (uint32_t i = 0; i < wide / 8; i++) {
        pair[i][0] = sum[4 * i + 2 * r];
        pair[i][1] = sum[4 * i + 2 * r + 1];
        last = 8 * i + 1 == left ? pair[i][0] : last;
    }
    if (left % 8 == 1 && left < wide) /* the last column of all is alone */
        put_one(part, row, col + left - 1, last);
    put_pairs(part, row, col, left, pair, wide / 8);
}

/* Where a warpgroup is in the ring of stages: the next that it waits for, and the oldest of those
 * that its products read. */
struct ring {
    uint32_t next, parity, oldest;
};
/* Begins the products of the next stage. */
GPU_FN void begin_stage(const struct room *s, struct ring *r, float *acc, uint32_t group,
                        const bool add) {
    const uint16_t *x = x_of_stage(s, r->next) + group * 64 * K, *w = w_of_stage(s, r->next);
    gpu_gate_wait(&s->full[r->next], r->parity);
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t k = 0; k < K / 16; k++)
        gpu_wg_rows(acc, s->wide, x, w, k, k > 0 || add);
    gpu_wg_commit();
    r->next = behind(s, r->next);
    r->parity ^= r->next == 0;
}
/* Behind gpu_wg_wait(), where a wave meets: nobody of it reads the stages before `end`. */
GPU_FN void end_stages(const struct room *s, struct ring *r, uint32_t end) {
    while (r->oldest != end) {
        if (gpu_lane() < MEMBERS)
            gpu_gate_arrive_at(&s->empty[r->oldest], gpu_lane());
        r->oldest = behind(s, r->oldest);
    }
}
/* A tile's sums. The first chains of the two warpgroups are of different length. */
GPU_FN void multiply(const struct room *s, struct ring *r, uint32_t panels, uint32_t group,
                     float *sum_of) {
    uint32_t left = panels, chain = CHAIN - group * (CHAIN / 2);
    float acc[SUMS_MOST];
    GPU_UNROLL
    for (uint32_t i = 0; i < s->wide / 2; i++)
        sum_of[i] = 0;
    GPU_ROLLED
    while (left) {
        chain = chain < left ? chain : left;
        left -= chain;
        begin_stage(s, r, acc, group, false);
        GPU_ROLLED
        while (--chain) {
            const uint32_t here = r->next;
            begin_stage(s, r, acc, group, true);
            gpu_wg_wait(1);
            end_stages(s, r, here);
        }
        gpu_wg_wait(0);
        gpu_wg_hold(acc, s->wide / 2);
        end_stages(s, r, r->next);
        GPU_UNROLL
        for (uint32_t i = 0; i < s->wide / 2; i++)
            sum_of[i] += acc[i];
        chain = CHAIN;
    }
}
GPU_FN void work(const struct gpu_linear *a, const struct room *s, uint32_t tiles) {
    const uint32_t group = gpu_uniform(gpu_wave()) / 4, row = group * 64 + gpu_wg_row(0);
    float sum_of[SUMS_MOST];
    struct ring ring = {0, 0, 0};
    GPU_ROLLED
    for (uint32_t n = gpu_block_x() / MEMBERS; n < tiles; n += gpu_blocks_x() / MEMBERS) {
        const struct tile t = tile_at(a, n, s->wide);
        multiply(s, &ring, t.panels, group, sum_of);
        put_row(a, &t, t.x0 + row, 0, sum_of, s->wide);
        put_row(a, &t, t.x0 + row + 8, 1, sum_of, s->wide);
    }
}

GPU_FN void gemm_wg(const struct gpu_linear *a, uint16_t (*stage)[64], uint32_t (*scratch)[32],
                    uint64_t *full, uint64_t *empty, const uint32_t wide, const uint32_t stages) {
    const struct room s = {stage, full, empty, wide, stages};
    const uint32_t tiles = all_tiles(a, wide) * (a->steps ? a->steps : 1);
    if (gpu_thread() == 0)
        for (uint32_t i = 0; i < stages; i++) {
            gpu_gate_set(&full[i], 1);
            gpu_gate_set(&empty[i], MEMBERS * MULTIPLYING / GPU_WAVE);
        }
    gpu_gates_seen();
    make_maps(a, scratch, wide);
    gpu_barrier();
    gpu_cluster_barrier(); /* gates of all members are set */
    if (gpu_wave() >= MULTIPLYING / GPU_WAVE) {
        gpu_fewer_registers(40);
        gpu_wait_previous();
        gpu_launch_next();
        if (gpu_thread() == MULTIPLYING)
            bring(a, &s, tiles);
    } else {
        gpu_more_registers(232);
        gpu_wait_previous();
        gpu_launch_next();
        work(a, &s, tiles);
    }
    gpu_cluster_barrier(); /* others send to this block, and tell it, until here */
}
#define GEMM_WG(NAME, W, STAGES, TIME)                                                             \
    GPU_KERNEL(weir_##NAME, gpu_linear, GPU_GEMM_WG_THREADS, 1) {                                  \
        GPU_SHARED(struct gpu_##NAME##_shared, s);                                                 \
        gemm_wg(&a, s->stage[0], s->map, s->full, s->empty, W, STAGES);                            \
    }

#else

#define GEMM_WG(NAME, W, STAGES, TIME)                                                             \
    GPU_KERNEL(weir_##NAME, gpu_linear, GPU_GEMM_WG_THREADS, 1) {                                  \
        (void)a;                                                                                   \
        gpu_fail();                                                                                \
    }

#endif

GPU_GEMM_WG_KERNELS(GEMM_WG)
