/* wrong.c: kernels of which each has one fault, or none. Compiled for both widths of a wave. */
#include "ops/gpu/dialect.h"
#include "tests/ops/gpu/wrong.h"

enum { MOST = 256 };
struct room {
    float at[MOST];
};

/* y[i] = x of the thread on the other side of the block, through shared memory. */
GPU_FN void mirror(const struct wrong *a, struct room *s, bool meet) {
    const uint32_t t = gpu_thread(), n = gpu_waves() * GPU_WAVE;
    s->at[t] = a->x[gpu_block_x() * n + t];
    if (meet)
        gpu_barrier();
    a->y[gpu_block_x() * n + t] = s->at[n - 1 - t];
}

GPU_KERNEL(right_mirror, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    mirror(&a, s, true);
}
GPU_KERNEL(mirror_without_barrier, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    mirror(&a, s, false);
}
/* The second round overwrites what slow threads of the first have not read. */
GPU_KERNEL(second_barrier_missing, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    float sum = 0;
    for (uint32_t round = 0; round < 2; round++) {
        s->at[gpu_thread()] = a.x[gpu_thread()] + (float)round;
        gpu_barrier();
        sum += s->at[(gpu_thread() + GPU_WAVE) % (gpu_waves() * GPU_WAVE)];
    }
    a.y[gpu_thread()] = sum;
}
GPU_KERNEL(barrier_for_some, wrong, MOST, 1) {
    if (gpu_thread() != 5)
        gpu_barrier();
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(two_barriers, wrong, MOST, 1) {
    if (gpu_thread() < GPU_WAVE)
        gpu_barrier();
    else
        gpu_barrier();
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(return_before_barrier, wrong, MOST, 1) {
    if (gpu_thread() < 3)
        return;
    gpu_barrier();
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(shuffle_for_some, wrong, MOST, 1) {
    float v = a.x[gpu_thread()];
    if (gpu_lane() < 7)
        v = gpu_shuffle_xor(v, 1);
    a.y[gpu_thread()] = v;
}
GPU_KERNEL(different_collectives, wrong, MOST, 1) {
    if (gpu_lane() < 7)
        a.y[gpu_thread()] = gpu_sum16(1);
    else
        a.y[gpu_thread()] = gpu_shuffle_xor(1, 1);
}
GPU_KERNEL(unwritten_shared, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    if (gpu_thread() != 9)
        s->at[gpu_thread()] = 0;
    gpu_barrier();
    a.y[gpu_thread()] = s->at[gpu_thread()];
}
GPU_KERNEL(load_at_odd_address, wrong, MOST, 1) {
    a.y[gpu_thread()] = gpu_as_f32(gpu_load16(a.x + gpu_thread()).x);
}

/* y = x, four floats a thread, by asynchronous copies in two commits, waited for as said. */
GPU_FN void copy(const struct wrong *a, struct room *s, int waits) {
    const uint32_t at = gpu_thread() % 32 * 4;
    gpu_copy16(s->at + at, a->x + at, true);
    gpu_copy_commit();
    gpu_copy16(s->at + 128 + at, a->x + 128 + at, at != 0);
    gpu_copy_commit();
    if (waits == 2)
        gpu_copy_wait(1);
    if (waits > 0)
        gpu_copy_wait(0);
    gpu_barrier();
    for (uint32_t e = 0; e < 4; e++) {
        a->y[at + e] = s->at[at + e];
        a->y[128 + at + e] = s->at[128 + at + e];
    }
}
GPU_KERNEL(right_copy, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    copy(&a, s, 2);
}
GPU_KERNEL(copy_without_wait, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    copy(&a, s, 0);
}
/* Waits for all but the last commit, reads all, and waits too late. */
GPU_KERNEL(copy_read_early, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    const uint32_t at = gpu_thread() % 32 * 4;
    gpu_copy16(s->at + at, a.x + at, true);
    gpu_copy_commit();
    gpu_copy_wait(1);
    gpu_barrier();
    a.y[gpu_thread()] = s->at[gpu_thread() % 128];
    gpu_copy_wait(0);
}

/* y[16][16] = 1 + A B^T of 16 x 32 tiles of BF16: both from memory; both through shared memory;
 * through it, B lying [k][row]; one this way and one that, which is no product. */
struct tile_room {
    uint16_t a[16 * 32], b[32 * 16];
};
GPU_FN void tiles(const struct wrong *a, struct tile_room *s, bool shared_a, bool shared_b,
                  bool across) {
    struct gpu_strips x, z;
    struct gpu_sums c;
    const uint16_t *A = (const uint16_t *)a->x, *B = A + 16 * 32;
    for (uint32_t i = gpu_thread(); i < 16 * 32; i += GPU_WAVE) {
        s->a[i] = A[i];
        s->b[i] = B[i];
    }
    gpu_barrier();
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        c.at[i] = 1;
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        x.row[i] = gpu_load16(A + gpu_strip_row(i) * 32 + gpu_strip_k());
        z.row[i] = gpu_load16(B + gpu_strip_row(i) * 32 + gpu_strip_k());
    }
    if (shared_a)
        gpu_strips_shared(&x, s->a, 32);
    if (shared_b && across)
        gpu_strips_transposed(&z, s->b, 16);
    else if (shared_b)
        gpu_strips_shared(&z, s->b, 32);
    gpu_mma16(&c, &x, &z);
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        a->y[gpu_sum_row(i) * 16 + gpu_sum_col(i)] = c.at[i];
}
GPU_KERNEL(right_tiles, wrong, 64, 1) {
    GPU_SHARED(struct tile_room, s);
    tiles(&a, s, false, false, false);
}
GPU_KERNEL(right_tiles_shared, wrong, 64, 1) {
    GPU_SHARED(struct tile_room, s);
    tiles(&a, s, true, true, false);
}
GPU_KERNEL(right_tiles_transposed, wrong, 64, 1) {
    GPU_SHARED(struct tile_room, s);
    tiles(&a, s, true, true, true);
}
GPU_KERNEL(tiles_of_two_orders, wrong, 64, 1) {
    GPU_SHARED(struct tile_room, s);
    tiles(&a, s, true, false, false);
}
/* Every collective that is a sum, a maximum or an exchange: y [6][threads]. */
GPU_KERNEL(right_collectives, wrong, MOST, 1) {
    const uint32_t t = gpu_thread(), n = gpu_waves() * GPU_WAVE;
    const float v = a.x[t];
    const gpu_mask odd = gpu_ballot(gpu_lane() % 2 != 0);
    a.y[t] = gpu_sum16(v);
    a.y[n + t] = gpu_wave_sum(v);
    a.y[2 * n + t] = gpu_wave_max(v);
    a.y[3 * n + t] = gpu_shuffle(v, gpu_lane() + 3);
    a.y[4 * n + t] = (float)gpu_max_u32(gpu_lane()) + (float)gpu_min_u32(gpu_lane() + 5);
    a.y[5 * n + t] = odd >> gpu_lane() & 1 ? 1 : 0;
}
GPU_KERNEL(right_count, wrong, MOST, 1) {
    /* The block that comes last sums what all have left. */
    GPU_SHARED(struct room, s);
    uint32_t *counter = (uint32_t *)a.y + MOST;
    if (gpu_thread() == 0) {
        a.y[gpu_block_x()] = a.x[gpu_block_x()];
        gpu_fence();
        s->at[0] = (float)gpu_atomic_add(counter, 1);
    }
    gpu_barrier();
    if (s->at[0] != (float)(gpu_blocks_x() - 1) || gpu_thread() != 0)
        return;
    float sum = 0;
    for (uint32_t i = 0; i < gpu_blocks_x(); i++)
        sum += a.y[i];
    a.y[MOST - 1] = sum;
}

/* y = x of the same thread of the other block of the cluster, which stores it here. */
GPU_FN void exchange(const struct wrong *a, struct room *s, bool meet) {
    const uint32_t t = gpu_thread(), at = gpu_block_x() * gpu_waves() * GPU_WAVE + t;
    gpu_cluster_arrive();
    gpu_cluster_wait();
    gpu_cluster_store(&s->at[t], 1 - gpu_cluster_rank(), a->x[at]);
    gpu_cluster_arrive();
    if (meet)
        gpu_cluster_wait();
    a->y[at] = s->at[t];
    if (!meet)
        gpu_cluster_wait();
}
GPU_KERNEL(right_exchange, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    exchange(&a, s, true);
}
GPU_KERNEL(exchange_read_early, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    exchange(&a, s, false);
}
GPU_KERNEL(wait_without_arrival, wrong, MOST, 1) {
    if (gpu_thread() != 7)
        gpu_cluster_arrive();
    gpu_cluster_wait();
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(different_meetings, wrong, MOST, 1) {
    if (gpu_cluster_rank() == 0)
        gpu_cluster_arrive();
    else
        gpu_cluster_arrive();
    gpu_cluster_wait();
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(store_outside_cluster, wrong, MOST, 1) {
    GPU_SHARED(struct room, s);
    gpu_cluster_store(&s->at[gpu_thread()], 2, 1);
    a.y[gpu_thread()] = 1;
}

/* The first half of the block writes, twice, what the second half reads. */
struct gated {
    float at[MOST];
    uint64_t full, empty;
};
GPU_KERNEL(right_gate, wrong, MOST, 1) {
    GPU_SHARED(struct gated, s);
    const uint32_t t = gpu_thread(), half = gpu_waves() * GPU_WAVE / 2;
    if (t == 0) {
        gpu_gate_set(&s->full, half);
        gpu_gate_set(&s->empty, half);
    }
    gpu_barrier();
    for (uint32_t round = 0; round < 2; round++) {
        if (t < half) {
            gpu_gate_wait(&s->empty, (round + 1) % 2);
            s->at[t] = a.x[t] + (float)round;
            gpu_gate_arrive(&s->full);
        } else {
            gpu_gate_wait(&s->full, round % 2);
            gpu_part_barrier(3, half);
            a.y[round * half + t - half] = s->at[2 * half - 1 - t];
            gpu_gate_arrive(&s->empty);
        }
    }
}
GPU_KERNEL(gate_that_stays_shut, wrong, MOST, 1) {
    GPU_SHARED(struct gated, s);
    if (gpu_thread() == 0)
        gpu_gate_set(&s->full, gpu_waves() * GPU_WAVE + 1);
    gpu_barrier();
    gpu_gate_arrive(&s->full);
    gpu_gate_wait(&s->full, 0);
    a.y[gpu_thread()] = 1;
}
GPU_KERNEL(part_for_some, wrong, MOST, 1) {
    if (gpu_thread() < GPU_WAVE && gpu_thread() != 5)
        gpu_part_barrier(1, GPU_WAVE);
    a.y[gpu_thread()] = 1;
}

/* Each block of the cluster brings eight rows to both, of the second of two matrices of 12 rows by
 * 40 columns that are 48 apart: y [block][16][64]. */
struct boxed {
    uint16_t panel[2][8][64];
    struct gpu_map map;
    uint64_t full;
};
GPU_FN void boxes(const struct wrong *a, struct boxed *s, bool expect, bool wait) {
    const uint32_t rank = gpu_cluster_rank(), n = gpu_waves() * GPU_WAVE;
    if (gpu_thread() == 0)
        gpu_gate_set(&s->full, 1);
    gpu_gates_seen();
    if (gpu_wave() == 0)
        gpu_map_make(&s->map, 0, (const uint16_t *)a->x, 40, 12, 96, 2, 12 * 96, 8);
    gpu_cluster_barrier();
    if (gpu_thread() == 0) {
        if (expect)
            gpu_gate_expect(&s->full, sizeof s->panel);
        gpu_copy_box_to_all(&s->panel[rank][0][0], gpu_map_made(0), 0, 8 * rank, 1, &s->full, 2);
    }
    if (wait)
        gpu_gate_wait(&s->full, 0);
    for (uint32_t i = gpu_thread(); i < 16 * 64; i += n)
        a->y[gpu_block_x() * 16 * 64 + i] =
            gpu_from_bf16((&s->panel[0][0][0])[gpu_panel(i / 64, i / 8 % 8) + i % 8]);
    gpu_cluster_barrier();
}
GPU_KERNEL(right_boxes, wrong, MOST, 1) {
    GPU_SHARED(struct boxed, s);
    boxes(&a, s, true, true);
}
GPU_KERNEL(box_read_early, wrong, MOST, 1) {
    GPU_SHARED(struct boxed, s);
    boxes(&a, s, true, false);
}
GPU_KERNEL(boxes_left_alone, wrong, MOST, 1) {
    GPU_SHARED(struct boxed, s);
    boxes(&a, s, false, false);
}
GPU_KERNEL(map_of_nothing, wrong, MOST, 1) {
    a.y[gpu_thread()] = gpu_map_made(3) ? 1 : 0;
}
GPU_KERNEL(gate_that_was_not_set, wrong, MOST, 1) {
    GPU_SHARED(struct boxed, s);
    gpu_gate_arrive(&s->full);
    a.y[gpu_thread()] = 1;
}
/* The second block tells the first something when all threads of that have gone. */
GPU_KERNEL(block_that_has_ended, wrong, MOST, 1) {
    GPU_SHARED(struct boxed, s);
    if (gpu_thread() == 0)
        gpu_gate_set(&s->full, gpu_waves() * GPU_WAVE);
    gpu_cluster_barrier();
    if (gpu_cluster_rank() == 1)
        gpu_gate_wait(&s->full, 0);
    gpu_gate_arrive_at(&s->full, 1 - gpu_cluster_rank());
}
