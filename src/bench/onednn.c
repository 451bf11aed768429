/* onednn.c: see onednn.h. Called by kernels.c.
 * Invariant that bites: its threads are OpenMP's, which reads its settings once, when the library
 * is loaded. It must be told before: how many, and that they sleep between calls, or they would
 * poll on the cores that the next sample of ours or of the roof is measured on. */
#include "bench/onednn.h"

#include "base/clock.h"

#include <stdlib.h>

bool onednn_takes(const struct kernel_case *c) {
    return c->family == KERNEL_LINEAR && c->dtype == DTYPE_BF16 && c->dense == DENSE_BF16;
}

#if defined(WEIR_ONEDNN_HEADERS)
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#define FUNCTIONS(F)                                                                               \
    F(engine_create)                                                                               \
    F(engine_destroy)                                                                              \
    F(stream_create)                                                                               \
    F(stream_destroy)                                                                              \
    F(stream_wait)                                                                                 \
    F(memory_create)                                                                               \
    F(memory_destroy)                                                                              \
    F(memory_get_data_handle)                                                                      \
    F(memory_desc_init_by_tag)                                                                     \
    F(matmul_desc_init)                                                                            \
    F(primitive_desc_create)                                                                       \
    F(primitive_desc_destroy)                                                                      \
    F(primitive_desc_query_md)                                                                     \
    F(reorder_primitive_desc_create)                                                               \
    F(primitive_create)                                                                            \
    F(primitive_destroy)                                                                           \
    F(primitive_execute)

static struct {
#define MEMBER(NAME) __typeof__(dnnl_##NAME) *NAME;
    FUNCTIONS(MEMBER)
#undef MEMBER
    bool loaded;
} api;

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t product;
    dnnl_memory_t x, y, *w; /* w: one for each copy of the case */
    uint32_t n;
    bool bf16;
};

weir_status onednn_load(uint32_t threads, weir_error *err) {
    /* The interface of the headers is that of one major version. */
    char file[32], number[16];
    if (api.loaded)
        return WEIR_OK;
    snprintf(file, sizeof file, "libdnnl.so.%d", DNNL_VERSION_MAJOR);
    snprintf(number, sizeof number, "%u", threads);
    setenv("OMP_NUM_THREADS", number, 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return weir_fail(err, WEIR_UNSUPPORTED, "--baseline",
                         "onednn needs %s; Debian's package is libdnnl%d", file,
                         DNNL_VERSION_MAJOR);
#define FIND(NAME)                                                                                 \
    if (!(*(void **)&api.NAME = dlsym(library, "dnnl_" #NAME)))                                    \
        return weir_fail(err, WEIR_UNSUPPORTED, file, "has no function dnnl_" #NAME);
    FUNCTIONS(FIND)
#undef FIND
    api.loaded = true;
    return WEIR_OK;
}

/* Runs a primitive of one input and one output once. */
static bool reorder(const struct onednn *o, dnnl_memory_t from, const dnnl_memory_desc_t *from_desc,
                    dnnl_memory_t to, const dnnl_memory_desc_t *to_desc) {
    dnnl_primitive_desc_t d = NULL;
    dnnl_primitive_t p = NULL;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    bool ok = api.reorder_primitive_desc_create(&d, from_desc, o->engine, to_desc, o->engine,
                                                NULL) == dnnl_success &&
              api.primitive_create(&p, d) == dnnl_success &&
              api.primitive_execute(p, o->stream, 2, args) == dnnl_success &&
              api.stream_wait(o->stream) == dnnl_success;
    if (p)
        api.primitive_destroy(p);
    if (d)
        api.primitive_desc_destroy(d);
    return ok;
}

/* Memory in the layout `want`, filled from numbers that lie plainly. */
static dnnl_memory_t bring(const struct onednn *o, const void *from, const dnnl_dims_t dims,
                           dnnl_data_type_t type, dnnl_format_tag_t tag,
                           const dnnl_memory_desc_t *want) {
    dnnl_memory_desc_t plain;
    dnnl_memory_t a = NULL, b = NULL;
    bool ok = api.memory_desc_init_by_tag(&plain, 2, dims, type, tag) == dnnl_success &&
              api.memory_create(&a, &plain, o->engine, (void *)(uintptr_t)from) == dnnl_success &&
              api.memory_create(&b, want, o->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
              reorder(o, a, &plain, b, want);
    if (a)
        api.memory_destroy(a);
    if (ok)
        return b;
    if (b)
        api.memory_destroy(b);
    return NULL;
}

/* The product in one type; false: not on this processor. */
static bool build(struct onednn *o, const struct kernel_work *w, dnnl_data_type_t type) {
    const dnnl_dims_t x_dims = {w->c.n, w->c.in}, w_dims = {w->c.in, w->c.out},
                      y_dims = {w->c.n, w->c.out};
    dnnl_memory_desc_t x, m, y;
    dnnl_matmul_desc_t product;
    dnnl_primitive_desc_t d = NULL;
    api.memory_desc_init_by_tag(&x, 2, x_dims, type, dnnl_ab);
    api.memory_desc_init_by_tag(&m, 2, w_dims, type, dnnl_format_tag_any);
    api.memory_desc_init_by_tag(&y, 2, y_dims, dnnl_f32, dnnl_ab);
    if (api.matmul_desc_init(&product, &x, &m, NULL, &y) != dnnl_success ||
        api.primitive_desc_create(&d, &product, NULL, o->engine, NULL) != dnnl_success)
        return false;
    const dnnl_memory_desc_t *liked = api.primitive_desc_query_md(d, dnnl_query_weights_md, 0);
    bool ok = liked && api.primitive_create(&o->product, d) == dnnl_success &&
              api.memory_create(&o->y, &y, o->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success;
    const struct linear_part *part = &w->op[0].u.linear.part[0];
    ok = ok && (o->x = bring(o, part->x.data, x_dims, dnnl_f32, dnnl_ab, &x));
    for (o->n = 0; ok && o->n < w->n_ops; o->n++) {
        const void *from = w->op[o->n].u.linear.part[0].w.data;
        o->w[o->n] = bring(o, from, w_dims, dnnl_bf16, dnnl_ba, liked);
        ok = o->w[o->n] != NULL;
    }
    api.primitive_desc_destroy(d);
    o->bf16 = type == dnnl_bf16;
    return ok;
}

static void drop(struct onednn *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->w[i])
            api.memory_destroy(o->w[i]);
    if (o->x)
        api.memory_destroy(o->x);
    if (o->y)
        api.memory_destroy(o->y);
    if (o->product)
        api.primitive_destroy(o->product);
    o->x = o->y = NULL;
    o->product = NULL;
    o->n = 0;
}

struct onednn *onednn_open(const struct kernel_work *w) {
    struct onednn *o = calloc(1, sizeof *o);
    WEIR_ASSERT(api.loaded && onednn_takes(&w->c) && w->op[0].u.linear.part[0].x.stride == w->c.in);
    if (o && (o->w = calloc(w->n_ops, sizeof(dnnl_memory_t))) &&
        api.engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success &&
        api.stream_create(&o->stream, o->engine, dnnl_stream_default_flags) == dnnl_success) {
        if (build(o, w, dnnl_bf16))
            return o;
        drop(o);
        if (build(o, w, dnnl_f32))
            return o;
    }
    onednn_close(o);
    return NULL;
}

void onednn_close(struct onednn *o) {
    if (!o)
        return;
    drop(o);
    if (o->stream)
        api.stream_destroy(o->stream);
    if (o->engine)
        api.engine_destroy(o->engine);
    free(o->w);
    free(o);
}

const char *onednn_name(const struct onednn *o) {
    return o->bf16 ? "onednn bf16" : "onednn f32";
}

double onednn_call(struct onednn *o, uint32_t first, uint32_t calls) {
    double from = clock_seconds();
    for (uint32_t i = 0; i < calls; i++) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, o->x},
                                        {DNNL_ARG_WEIGHTS, o->w[(first + i) % o->n]},
                                        {DNNL_ARG_DST, o->y}};
        api.primitive_execute(o->product, o->stream, 3, args);
    }
    api.stream_wait(o->stream);
    return clock_seconds() - from;
}

const float *onednn_results(const struct onednn *o) {
    void *data = NULL;
    return api.memory_get_data_handle(o->y, &data) == dnnl_success ? data : NULL;
}

#else

weir_status onednn_load(uint32_t threads, weir_error *err) {
    return weir_fail(err, WEIR_UNSUPPORTED, "--baseline",
                     "onednn: this program was built without its headers (Debian: libdnnl-dev)");
}
struct onednn *onednn_open(const struct kernel_work *w) {
    return NULL;
}
void onednn_close(struct onednn *o) {}
const char *onednn_name(const struct onednn *o) {
    return "onednn";
}
double onednn_call(struct onednn *o, uint32_t first, uint32_t calls) {
    return 0;
}
const float *onednn_results(const struct onednn *o) {
    return NULL;
}
#endif
