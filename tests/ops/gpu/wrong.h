/* wrong.h: kernels for the tests of the emulator. */
#ifndef WEIR_TESTS_OPS_GPU_WRONG_H
#define WEIR_TESTS_OPS_GPU_WRONG_H

struct wrong {
    const float *x;
    float *y;
};

#define WRONG_KERNELS(X)                                                                           \
    X(right_mirror)                                                                                \
    X(mirror_without_barrier)                                                                      \
    X(second_barrier_missing)                                                                      \
    X(barrier_for_some)                                                                            \
    X(two_barriers)                                                                                \
    X(return_before_barrier)                                                                       \
    X(shuffle_for_some)                                                                            \
    X(different_collectives)                                                                       \
    X(unwritten_shared)                                                                            \
    X(load_at_odd_address)                                                                         \
    X(right_copy)                                                                                  \
    X(copy_without_wait)                                                                           \
    X(copy_read_early)                                                                             \
    X(right_tiles)                                                                                 \
    X(right_tiles_shared)                                                                          \
    X(tiles_of_two_orders)                                                                         \
    X(right_tiles_transposed)                                                                      \
    X(right_collectives)                                                                           \
    X(right_count)                                                                                 \
    X(right_exchange)                                                                              \
    X(exchange_read_early)                                                                         \
    X(wait_without_arrival)                                                                        \
    X(different_meetings)                                                                          \
    X(store_outside_cluster)                                                                       \
    X(right_gate)                                                                                  \
    X(gate_that_stays_shut)                                                                        \
    X(part_for_some)                                                                               \
    X(right_boxes)                                                                                 \
    X(box_read_early)                                                                              \
    X(boxes_left_alone)                                                                            \
    X(map_of_nothing)                                                                              \
    X(gate_that_was_not_set)                                                                       \
    X(block_that_has_ended)

#endif
