/* kernels.c: machines as rules see them, checks of a layout, and the list of entries. Operations
 * are in kernel_steps.c. Called by the command. */
#include "plan/kernel_list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --------------------------------------------------------------------------- machine */

static bool machine_from(const struct gpu_spec *g, struct kernel_machine *out) {
    if (!policy_machine_of(g->architecture, &out->kind) ||
        !(g->compute_units > 0 && g->wave_lanes > 0 && g->local_bytes > 0 &&
          g->local_unit_bytes > 0))
        return false;
    snprintf(out->name, sizeof out->name, "%s", g->name);
    snprintf(out->architecture, sizeof out->architecture, "%s", g->architecture);
    out->device = (struct occupancy_device){
        (uint32_t)g->compute_units, (uint32_t)g->local_bytes, (uint32_t)g->local_unit_bytes,
        isnan(g->local_reserved_bytes) ? 0 : (uint32_t)g->local_reserved_bytes};
    out->shape = (struct gpu_shape){.multiprocessors = (uint32_t)g->compute_units,
                                    .wave = (uint32_t)g->wave_lanes,
                                    .warpgroups = out->kind == POLICY_SM90,
                                    .cluster = g->wave_lanes == 32 ? GPU_CLUSTER_MOST : 0};
    return true;
}

weir_status kernel_machine_find(const char *name, struct kernel_machine *out, weir_error *err) {
    struct gpu_spec *list;
    size_t n;
    char names[128] = "";
    bool found = false;
    weir_status s = gpu_specs_open(&list, &n, err);
    if (s)
        return s;
    for (size_t i = 0, at = 0; i < n && !found && at < sizeof names; i++) {
        if (!machine_from(&list[i], out))
            continue;
        found = !strcasecmp(out->name, name);
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", out->name);
    }
    free(list);
    return found ? WEIR_OK
                 : weir_fail(err, WEIR_BAD_VALUE, "machine",
                             "'%.40s' is none of those with rules of dispatch: %s", name, names);
}

/* --------------------------------------------------------------------------- layout */

static weir_status check(const struct model *m, const struct kernel_load *load, weir_error *err) {
    const uint32_t tp = load->tp;
    const struct {
        uint32_t value, unit; /* a rank's share is a multiple of `unit` */
        const char *name;
    } cut[] = {
        {m->kda_heads, 1, "KDA heads"},
        {m->heads, 1, "attention heads"},
        {m->vocab, 1, "rows of the vocabulary"},
        {m->first_dense || !m->experts ? m->dense_inter : 0, 8, "dense intermediate columns"},
        {m->experts ? m->moe_inter : 0, 32, "intermediate columns of an expert"},
        {m->latent ? m->hidden : 0, 1, "hidden columns"},
    };
    for (size_t i = 0; i < sizeof cut / sizeof *cut && tp > 1; i++)
        if (cut[i].value % tp || cut[i].value / tp % cut[i].unit)
            return weir_fail(err, WEIR_BAD_VALUE, "tensor_parallel_size",
                             "is %u, but %u %s must divide by it into multiples of %u", tp,
                             cut[i].value, cut[i].name, cut[i].unit);
    if (load->fp8_dense && m->experts && !m->mxfp4_experts)
        return weir_fail(
            err, WEIR_BAD_VALUE, "dense_dtype",
            "is fp8, but experts of this model are bf16, which no kernel takes as fp8");
    if (load->dcp > tp || tp % load->dcp)
        return weir_fail(err, WEIR_BAD_VALUE, "decode_context_parallel_size",
                         "is %u, which does not divide the %u ranks of --tensor-parallel-size",
                         load->dcp, tp);
    return WEIR_OK;
}

const char *kernel_step_name(enum kernel_step s) {
    switch (s) {
    case KERNEL_DECODE: return "decode";
    case KERNEL_VERIFY: return "verify";
    case KERNEL_PREFILL: return "prefill";
    }
    return "decode";
}

/* --------------------------------------------------------------------------- entries */

/* Threads that a unit holds, by the documents of both vendors. */
enum { UNIT_THREADS = 2048 };

uint32_t kernel_list_resident(const struct kernel_machine *m, uint32_t shared_bytes,
                              uint32_t threads) {
    const uint32_t by_threads = threads ? UNIT_THREADS / threads : 0;
    const uint32_t by_local = occupancy_local(&m->device, shared_bytes).resident;
    if (!shared_bytes || !threads)
        return shared_bytes ? by_local : by_threads;
    return by_local < by_threads ? by_local : by_threads;
}

static struct kernel_entry *next_entry(struct kernel_list *l, const char *name, uint64_t launches) {
    WEIR_ASSERT(l->plan->n < KERNEL_ENTRIES_MOST);
    struct kernel_entry *e = &l->plan->entry[l->plan->n++];
    *e = (struct kernel_entry){.step = l->step, .name = name, .launches = launches};
    return e;
}

struct kernel_entry *kernel_list_add(struct kernel_list *l, const char *name, uint64_t launches,
                                     struct gpu_launch g, const char *reason, ...) {
    struct kernel_entry *e = next_entry(l, name, launches);
    va_list args;
    va_start(args, reason);
    vsnprintf(e->takes.reason, sizeof e->takes.reason, reason, args);
    va_end(args);
    if (g.kernel == GPU_NO_KERNEL) {
        snprintf(e->takes.variant, sizeof e->takes.variant, "none");
        snprintf(e->takes.reason, sizeof e->takes.reason, "no kernel of weir takes this shape");
        return e;
    }
    e->kernel = gpu_kernel_info(g.kernel)->name;
    snprintf(e->takes.variant, sizeof e->takes.variant, "%s", e->kernel);
    e->takes.workgroups = (uint64_t)g.blocks_x * g.blocks_y;
    e->takes.threads = g.threads;
    e->takes.shared_bytes = g.shared_bytes;
    e->takes.resident = kernel_list_resident(l->machine, g.shared_bytes, g.threads);
    return e;
}

struct kernel_entry *kernel_list_named(struct kernel_list *l, const char *name, const char *variant,
                                       uint64_t launches, uint64_t workgroups, const char *reason,
                                       ...) {
    struct kernel_entry *e = next_entry(l, name, launches);
    va_list args;
    va_start(args, reason);
    vsnprintf(e->takes.reason, sizeof e->takes.reason, reason, args);
    va_end(args);
    snprintf(e->takes.variant, sizeof e->takes.variant, "%s", variant);
    e->takes.workgroups = workgroups;
    return e;
}

weir_status kernel_plan_make(const struct model *m, const struct kernel_machine *machine,
                             const struct kernel_load *load, struct kernel_plan *out,
                             weir_error *err) {
    weir_status s = check(m, load, err);
    if (s)
        return s;
    struct kernel_list l = {.plan = out, .m = m, .machine = machine, .load = load};
    out->n = 0;
    l.step = load->draft ? KERNEL_VERIFY : KERNEL_DECODE;
    l.rows = load->batch * (1 + load->draft);
    kernel_list_step(&l);
    if (load->prompt) {
        l.step = KERNEL_PREFILL;
        l.rows = load->prompt;
        kernel_list_step(&l);
    }
    return WEIR_OK;
}
