/* step_device.c: see step_device.h. Called by step.c. */
#include "bench/step_device.h"

#include "bench/quantile.h"
#include "forward/device.h"
#include "ops/gpu/launch.h"

enum {
    ROOF_ROUNDS = 9,
    ROOF_LAUNCHES = 2,
    STEP_ROUNDS = 3,
    STEP_LAUNCHES = 32,
    LEAST_ROOF_BYTES = 1 << 18,
    ROOF_BYTES = 1 << 30,
};

static const double STEP_SECONDS = 0.01;

static weir_status copy_seconds(struct gpu_device *d, void *kernel, const struct gpu_copy *record,
                                double *seconds, weir_error *err) {
    const struct gpu_launch l = gpu_launch_copy(record);
    double us = 0;
    weir_status st = gpu_mark(d, 0, err);
    for (int i = 0; i < ROOF_LAUNCHES && !st; i++)
        st = gpu_kernel_launch(d, kernel, &l, record, false, err);
    if (!st)
        st = gpu_mark(d, 1, err);
    if (!st)
        st = gpu_marked_us(d, &us, err);
    *seconds = us * 1e-6 / ROOF_LAUNCHES;
    return st;
}

static weir_status measure(struct gpu_device *d, uint64_t from, uint64_t to, size_t bytes,
                           struct roof *out, weir_error *err) {
    const struct gpu_copy record = {(const void *)(uintptr_t)from, (void *)(uintptr_t)to,
                                    bytes / 16};
    double rate[ROOF_ROUNDS];
    void *kernel;
    weir_status st = gpu_kernel_find(d, gpu_kernel_info(GPU_weir_copy)->name, 0, &kernel, err);
    if (!st) /* numbers, as all-zero lines may move faster */
        st = gpu_fill(d, from, 0x5a, bytes, err);
    for (int i = -1; i < ROOF_ROUNDS && !st; i++) { /* the first brings code along */
        double seconds;
        st = copy_seconds(d, kernel, &record, &seconds, err);
        rate[i < 0 ? 0 : i] = st ? 0 : 2e-9 * (double)bytes / seconds;
    }
    if (!st)
        out->read = out->modify = out->copy = quantile(rate, ROOF_ROUNDS, 0.5);
    return st;
}

weir_status device_roof(struct gpu_device *d, size_t bytes, struct roof *out, weir_error *err) {
    uint64_t from = 0, to = 0;
    *out = (struct roof){0};
    weir_status st = gpu_device_enter(d, err);
    if (!bytes)
        bytes = gpu_device_facts(d)->memory_bytes / 256; /* of an H200 nine times its cache */
    bytes = bytes < ROOF_BYTES ? bytes : ROOF_BYTES;
    bytes /= 16;
    bytes *= 16;
    for (; !st && bytes >= LEAST_ROOF_BYTES; bytes /= 2) {
        weir_error ignored;
        if (gpu_memory_take(d, bytes, &from, &ignored) == WEIR_OK &&
            gpu_memory_take(d, bytes, &to, &ignored) == WEIR_OK)
            break;
        gpu_memory_free(d, from);
        from = to = 0;
    }
    if (!st && !to)
        st = weir_fail(err, WEIR_NO_MEMORY, "device", "no memory to measure its bandwidth with");
    if (!st)
        st = measure(d, from, to, bytes, out, err);
    gpu_memory_free(d, from);
    gpu_memory_free(d, to);
    return st;
}

static weir_status once(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                        struct device_timing t, double *seconds, weir_error *err) {
    double us;
    weir_status st = runner_time(r, feeds, n, &t, &us, err);
    *seconds = st ? 0 : 1e-6 * us;
    return st;
}

/* Median of a few rounds of launches that take about as long as it takes to make a graph, or a
 * single one that takes longer. */
static weir_status step_seconds(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                                struct device_timing t, double *seconds, weir_error *err) {
    double round[STEP_ROUNDS], first;
    t.launches = 1;
    weir_status st = once(r, feeds, n, t, &first, err);
    *seconds = first;
    if (st || first > STEP_SECONDS)
        return st;
    while (t.launches < STEP_LAUNCHES && t.launches * first < STEP_SECONDS)
        t.launches *= 2;
    for (int i = 0; i < STEP_ROUNDS && !st; i++)
        st = once(r, feeds, n, t, &round[i], err);
    if (!st)
        *seconds = quantile(round, STEP_ROUNDS, 0.5);
    return st;
}

weir_status device_step_seconds(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                                const bool *left_out, uint32_t launches, double *seconds,
                                weir_error *err) {
    return once(r, feeds, n, (struct device_timing){left_out, true, launches}, seconds, err);
}

/* What the whole step is longer than without operations of this kind. */
static weir_status kind_seconds(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                                enum op_kind kind, double whole, bool *left_out, double *seconds,
                                weir_error *err) {
    uint32_t n_ops;
    double without = 0;
    const struct op *op = program_ops(runner_program(r), &n_ops);
    for (uint32_t i = 0; i < n_ops; i++)
        left_out[i] = op[i].kind == kind;
    weir_status st =
        step_seconds(r, feeds, n, (struct device_timing){left_out, true, 1}, &without, err);
    *seconds = whole > without ? whole - without : 0;
    return st;
}

weir_status device_time_step(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                             uint32_t kinds, struct device_step *out, weir_error *err) {
    uint32_t n_ops;
    program_ops(runner_program(r), &n_ops);
    bool *left_out = calloc(n_ops, sizeof *left_out);
    double whole = 0; /* with the same experts as those that lack something */
    *out = (struct device_step){0};
    weir_status st = left_out
                         ? step_seconds(r, feeds, n, (struct device_timing){0}, &out->seconds, err)
                         : weir_fail(err, WEIR_NO_MEMORY, "bench step", "no memory");
    if (!st)
        st = step_seconds(r, feeds, n, (struct device_timing){NULL, true, 1}, &whole, err);
    for (enum op_kind k = 0; k < OP_COUNT && !st; k++)
        if (kinds >> k & 1)
            st = kind_seconds(r, feeds, n, k, whole, left_out, &out->kind[k], err);
    free(left_out);
    return st;
}
