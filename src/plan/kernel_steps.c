/* kernel_steps.c: the operations of a step in the order of the step program (forward/), each with
 * the shape that one rank has: heads, vocabulary and intermediate columns cut by tensor
 * parallelism, what reads the hidden width whole. Called by kernels.c. Invariant that bites:
 * records here have shapes and no addresses; a second term of a product is known by an address, so
 * it gets one that is never read. */
#include "plan/kernel_list.h"

#include "ops/kv.h"

static const uint16_t present; /* stands for a matrix that is there */

static uint32_t moe_layers(const struct model *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->layers; i++)
        n += model_is_moe(m, i);
    return n;
}

/* --------------------------------------------------------------------------- products */

static void part(struct gpu_linear *a, uint32_t rows, uint32_t cols) {
    a->part[a->n_parts++] = (struct gpu_linear_part){.rows = rows, .cols = cols};
}
/* Of a matrix that --dense-dtype is about: neither router, head nor kv_b. */
static void dense_part(const struct kernel_list *l, struct gpu_linear *a, uint32_t rows,
                       uint32_t cols) {
    part(a, rows, cols);
    a->part[a->n_parts - 1].fp8 = l->load->fp8_dense;
}

static uint64_t rounds(const struct kernel_list *l, const struct gpu_launch *g) {
    const uint64_t units = l->machine->shape.multiprocessors;
    return ((uint64_t)g->blocks_x * g->blocks_y + units - 1) / units;
}

/* What many rows do with FP8 matrices first. */
static void widen(struct kernel_list *l, uint32_t launches, struct gpu_linear *a) {
    for (uint32_t p = 0; p < a->n_parts; p++) {
        struct gpu_linear_part *part = &a->part[p];
        for (uint32_t term = 0; part->fp8 && term < (part->w2 ? 2u : 1u); term++) {
            const struct gpu_widen w = {.rows = part->rows,
                                        .cols = term ? part->cols2 : part->cols};
            kernel_list_add(l, "widen", launches, gpu_launch_widen(&w),
                            "more than %d rows take an FP8 matrix that has become BF16",
                            GPU_FP8_X_ROWS);
        }
        part->fp8 = part->fp8_2 = 0;
    }
}

static void linear(struct kernel_list *l, const char *name, uint32_t launches, struct gpu_linear a,
                   uint32_t rows) {
    a.x_rows = rows;
    if (rows > GPU_FP8_X_ROWS)
        widen(l, launches, &a);
    const struct gpu_launch g = gpu_launch_linear(&a, l->machine->shape);
    const uint32_t waves = g.threads / l->machine->shape.wave;
    switch (g.kernel) {
    case GPU_weir_gemv_1:
    case GPU_weir_gemv_1_more:
    case GPU_weir_gemv_2:
    case GPU_weir_gemv_fp8_1:
    case GPU_weir_gemv_fp8_1_more:
    case GPU_weir_gemv_fp8_2:
        kernel_list_add(l, name, launches, g,
                        "1 or 2 rows: 4 rows of W at a time without tiles, %u of %u waves on each: "
                        "as few as let all workgroups be there at once, or all",
                        a.split, waves);
        break;
    case GPU_weir_skinny_8:
    case GPU_weir_skinny_16:
    case GPU_weir_skinny_32:
    case GPU_weir_skinny_64:
    case GPU_weir_skinny_fp8_8:
    case GPU_weir_skinny_fp8_16:
    case GPU_weir_skinny_fp8_32:
        kernel_list_add(l, name, launches, g,
                        "from 3 rows on: a tile of 16 rows of W a workgroup, whose waves share the "
                        "columns: larger ones leave units idle");
        break;
    case GPU_weir_skinny_8_two:
    case GPU_weir_skinny_8_wide:
    case GPU_weir_skinny_16_wide:
    case GPU_weir_skinny_32_wide:
    case GPU_weir_skinny_64_wide:
    case GPU_weir_skinny_fp8_8_wide:
    case GPU_weir_skinny_fp8_16_wide:
    case GPU_weir_skinny_fp8_32_wide:
        kernel_list_add(
            l, name, launches, g,
            "from 3 rows on: two to four tiles of 16 rows of W a workgroup, whose waves "
            "share the columns: x is read once for all");
        break;
    case GPU_weir_gemm_128:
    case GPU_weir_gemm_192:
        kernel_list_add(
            l, name, launches, g,
            "more than 64 rows go through local memory: rounds over the units (%llu) by "
            "tiles of %s are thought quicker than those by the other size",
            (unsigned long long)rounds(l, &g),
            g.kernel == GPU_weir_gemm_128 ? "128 by 64" : "192 by 128");
        break;
#define OF_WARPGROUPS(NAME, ROWS, STAGES, TIME)                                                    \
    case GPU_weir_##NAME:                                                                          \
        kernel_list_add(l, name, launches, g,                                                      \
                        "more than 64 rows go to pairs of workgroups that stay, by tiles of %d "   \
                        "by %d: thought quicker than those of other kernels by warpgroups",        \
                        (int)GPU_GEMM_WG_MEMBERS *(int)GPU_GEMM_WG_X, ROWS);                       \
        break;
        GPU_GEMM_WG_KERNELS(OF_WARPGROUPS)
#undef OF_WARPGROUPS
    default:
        kernel_list_add(l, name, launches, g,
                        "columns must be multiples of 8 and parts of a launch few");
    }
}

/* --------------------------------------------------------------------------- around layers */

static void mix_norm(struct kernel_list *l, const char *name, uint32_t launches, uint32_t rows) {
    struct gpu_mix_norm a = {.rows = rows, .cols = l->m->hidden};
    kernel_list_add(
        l, name, launches, gpu_launch_mix_norm(&a, l->machine->shape),
        "few rows go to clusters of up to %d workgroups, many come one after another; up "
        "to %d columns",
        GPU_CLUSTER_MOST, GPU_ROW_MOST);
}

static void norm(struct kernel_list *l, const char *name, uint32_t launches, uint32_t cols) {
    const struct gpu_norm a = {.cols = cols};
    kernel_list_add(l, name, launches, gpu_launch_norm(&a, l->rows, l->machine->shape),
                    "a workgroup a row, up to %d columns", GPU_ROW_MOST);
}

static void all_reduce(struct kernel_list *l, uint32_t launches) {
    const struct policy_reduce r = policy_reduce(l->rows);
    if (l->load->tp > 1 && launches)
        kernel_list_named(l, "all_reduce", r.variant, launches, 0, "%s", r.reason);
}

/* --------------------------------------------------------------------------- KDA */

static void kda_verify(struct kernel_list *l, uint32_t layers, uint32_t heads) {
    const uint32_t n = l->load->batch, tokens = 1 + l->load->draft;
    const struct policy_tile t = policy_verify_tile(heads, n);
    const struct gpu_kda_verify a = {.token = {.heads = heads, .taps = l->m->conv_taps}};
    struct gpu_launch launch = gpu_launch_kda_verify(&a, l->m->kda_dim, n, l->machine->shape);
    if (tokens > GPU_KDA_TOKENS_MOST)
        launch.kernel = GPU_NO_KERNEL;
    struct kernel_entry *e = kernel_list_add(
        l, "kda_verify", layers, launch,
        "%u workgroup%s a head and sequence, %u tokens of %d at most; what is kept of them goes "
        "into the state with the next launch",
        launch.blocks_x / heads, launch.blocks_x > heads ? "s" : "", tokens, GPU_KDA_TOKENS_MOST);
    e->has_other = true;
    e->other.workgroups = (uint64_t)occupancy_workgroups(heads, l->m->kda_dim, t.columns) * n;
    e->other.threads = t.waves * l->machine->shape.wave;
    snprintf(e->other.variant, sizeof e->other.variant, "verify_columns_%u", t.columns);
    snprintf(e->other.reason, sizeof e->other.reason,
             "%s; %u wave%s a workgroup, tiles of 32 columns would be %llu workgroups on %u units",
             t.reason, t.waves, t.waves == 1 ? "" : "s",
             (unsigned long long)occupancy_workgroups(heads, l->m->kda_dim, 32) * n,
             l->machine->device.compute_units);
}

/* By chunks: weir walks them in order, the rules may group them. */
static void kda_chunks(struct kernel_list *l, uint32_t layers, uint32_t heads) {
    const struct kernel_machine *machine = l->machine;
    const struct gpu_kda_prefill a = {
        .n_seqs = 1, .heads = heads, .dim = l->m->kda_dim, .taps = l->m->conv_taps};
    const struct policy_groups g =
        policy_prefill_groups(machine->kind, machine->device.compute_units, heads, 1, l->rows);
    const uint32_t chunks = gpu_divide_up(l->rows, POLICY_CHUNK);
    struct kernel_entry *e = kernel_list_add(
        l, "kda_prefill_chunks", layers, gpu_launch_kda_prefill_chunks(&a, l->rows, machine->shape),
        "a workgroup a chunk and head");
    const struct policy_local local = policy_kda_prepare_local(machine->kind);
    e->has_other = local.bytes > 0;
    if (e->has_other) {
        snprintf(e->other.variant, sizeof e->other.variant, "chunks_of_%d", POLICY_CHUNK);
        e->other.workgroups = (uint64_t)chunks * heads;
        e->other.shared_bytes = local.bytes;
        e->other.resident = kernel_list_resident(machine, local.bytes, 0);
        snprintf(e->other.reason, sizeof e->other.reason,
                 "%s; two a unit may ask for %u bytes each", local.reason,
                 occupancy_local_budget(&machine->device, 2));
    }
    e = kernel_list_add(l, "kda_prefill_states", layers,
                        gpu_launch_kda_prefill_states(&a, l->rows, machine->shape),
                        "a workgroup 16 value columns of a head and sequence, chunks in order");
    e->has_other = g.groups > 1;
    if (e->has_other) {
        e->other.workgroups = g.first;
        snprintf(e->other.variant, sizeof e->other.variant, "chunks_in_%u_groups", g.groups);
        snprintf(e->other.reason, sizeof e->other.reason,
                 "%s; %u chunks of %d tokens, %llu workgroups from the zero state, %llu from the "
                 "true one, on %u units",
                 g.reason, chunks, POLICY_CHUNK, (unsigned long long)g.first,
                 (unsigned long long)g.second, machine->device.compute_units);
    }
    kernel_list_add(l, "kda_prefill_out", layers,
                    gpu_launch_kda_prefill_out(&a, l->rows, machine->shape),
                    "norm and gate, a workgroup a chunk and head");
}

static void kda(struct kernel_list *l) {
    const struct model *m = l->m;
    const uint32_t layers = model_kda_layers(m), tp = l->load->tp;
    const uint32_t width = model_kda_width(m) / tp, heads = m->kda_heads / tp;
    if (!layers)
        return;
    struct gpu_linear in = {0}, low = {0}, out = {0};
    for (int i = 0; i < 3; i++)
        dense_part(l, &in, width, m->hidden);
    dense_part(l, &in, heads, m->hidden);
    dense_part(l, &in, m->kda_dim, m->hidden);
    dense_part(l, &in, m->full_rank_gate ? width : m->kda_dim, m->hidden);
    dense_part(l, &low, width, m->kda_dim);
    if (!m->full_rank_gate)
        dense_part(l, &low, width, m->kda_dim);
    dense_part(l, &out, m->hidden, width);
    linear(l, "kda_in", layers, in, l->rows);
    linear(l, "kda_low_rank", layers, low, l->rows);
    const struct gpu_kda_step a = {.heads = heads, .taps = m->conv_taps};
    const uint32_t n = l->step == KERNEL_PREFILL ? 1 : l->load->batch;
    const struct gpu_launch step = gpu_launch_kda_step(&a, m->kda_dim, n, l->machine->shape);
    switch (l->step) {
    case KERNEL_DECODE:
        kernel_list_add(l, "kda_decode", layers, step,
                        "%u workgroup%s a head and sequence, the kernel of heads of %u",
                        step.blocks_x / heads, step.blocks_x > heads ? "s" : "", m->kda_dim);
        break;
    case KERNEL_VERIFY: kda_verify(l, layers, heads); break;
    case KERNEL_PREFILL: kda_chunks(l, layers, heads); break;
    }
    linear(l, "kda_out", layers, out, l->rows);
}

/* --------------------------------------------------------------------------- MLA */

/* Of one position of one layer, as weir keeps it. */
static uint32_t record_bytes(const struct kernel_list *l) {
    return (uint32_t)kv_record_bytes(l->load->fp8_history ? DTYPE_FP8 : DTYPE_BF16, l->m->kv_lora,
                                     l->m->rope_dim);
}

/* What the rules name for `heads` of each of `sequences`, queries of one sequence in `queries`. */
static struct kernel_way named_attention(const struct kernel_list *l, uint32_t heads,
                                         uint32_t sequences, uint32_t queries,
                                         struct policy_heads *padded) {
    const enum policy_machine kind = l->machine->kind;
    struct kernel_way w = {0};
    const struct policy_queries q = policy_queries(kind, queries);
    if (q.own_sequence)
        sequences *= queries;
    const struct policy_heads h = policy_heads(kind, heads, q.own_sequence ? 1 : q.queries);
    *padded = h;
    if (!h.heads) {
        snprintf(w.variant, sizeof w.variant, "none");
        snprintf(w.reason, sizeof w.reason, "%s", h.reason);
        return w;
    }
    const uint32_t tiles = gpu_divide_up(h.heads, h.tile) * sequences;
    const struct policy_splits s = policy_splits(kind, tiles, l->machine->shape);
    const bool fp8 = l->load->fp8_history;
    const struct policy_history f = policy_fp8_history(kind, queries);
    w.workgroups = (uint64_t)tiles * s.splits;
    snprintf(w.variant, sizeof w.variant, "%s%sheads_%u_%s_splits_%u", fp8 ? f.variant : "",
             fp8 ? "_" : "", h.heads, policy_fill_name(h.fill), s.splits);
    snprintf(w.reason, sizeof w.reason, "%s; %s%s%s%s%s", h.reason, s.reason,
             queries > 1 ? "; " : "", queries > 1 ? q.reason : "",
             fp8 ? f.fallback ? "; fallback for FP8: " : "; FP8: " : "", fp8 ? f.reason : "");
    return w;
}

/* Heads that attend over what this rank holds of a history: with a group of ranks that share
 * histories, those of all of them. */
static void attention(struct kernel_list *l, uint32_t layers, uint32_t heads) {
    static const char *const names[] = {"mla_decode", "mla_verify", "mla_prefill"};
    const struct model *m = l->m;
    const struct kernel_load *load = l->load;
    const bool prompt = l->step == KERNEL_PREFILL;
    const uint32_t rows = l->rows < GPU_SKINNY_ROWS ? l->rows : GPU_SKINNY_ROWS;
    const uint64_t launches = (uint64_t)layers * gpu_divide_up(l->rows, GPU_SKINNY_ROWS);
    const uint32_t positions = gpu_divide_up(prompt ? load->prompt : load->context, load->dcp);
    struct gpu_mla_decode a = {.heads = heads,
                               .latent = m->kv_lora,
                               .extra = m->rope_dim,
                               .record_bytes = record_bytes(l),
                               .fp8 = load->fp8_history,
                               .shares = gpu_mla_shares(rows, heads, l->machine->shape)};
    const struct gpu_launch split = gpu_launch_mla_split(&a, rows, l->machine->shape);
    const uint32_t tile = split.kernel == GPU_weir_mla_split_48 ? 48 : GPU_MLA_HEADS;
    const uint32_t tiles = gpu_divide_up(heads, tile), padded = tiles * tile;
    struct policy_heads rule = {0};
    const struct kernel_way named =
        named_attention(l, heads, prompt ? 1 : load->batch, prompt ? 1 : 1 + load->draft, &rule);
    const uint32_t share = gpu_mla_share(a.shares, positions);
    struct kernel_entry *e = kernel_list_add(
        l, names[l->step], launches, split,
        "%u row%s a launch, each a sequence of its own; %u tile%s of %u heads, %u of %u rows of "
        "zeros in the tile alone; %u share%s of the positions fill %u units once, %u of them with "
        "%u positions or fewer at %u%s",
        rows, rows == 1 ? "" : "s", tiles, tiles == 1 ? "" : "s", tile, padded - heads, padded,
        a.shares, a.shares == 1 ? "" : "s", l->machine->device.compute_units,
        gpu_divide_up(positions, share), share, positions,
        load->fp8_history ? "; FP8 becomes 16 bits on its way to the products" : "");
    e->heads = heads;
    e->padded = padded;
    /* Hopper's fallback for FP8, products of 16 bits, is what weir's kernels do everywhere. */
    const bool same = tiles == 1 && rule.heads == padded && !load->draft &&
                      policy_splits(l->machine->kind, rows, l->machine->shape).splits == a.shares &&
                      (!load->fp8_history || l->machine->kind == POLICY_SM90);
    e->has_other = !prompt && !same;
    if (e->has_other)
        e->other = named;
    const struct gpu_launch together = gpu_launch_mla_merge(&a, rows, l->machine->shape);
    kernel_list_add(l, "mla_merge", launches, together,
                    "a workgroup a row and %u latents of a head puts %u share%s together",
                    a.columns, a.shares, a.shares == 1 ? "" : "s");
}

/* Rows of a prompt over keys and values of their history, which are made for them. False: they are
 * too few, or no kernel takes these heads. */
static bool expanded(struct kernel_list *l, uint32_t layers, uint32_t heads) {
    const struct model *m = l->m;
    const uint32_t positions = l->load->prompt;
    const struct gpu_mla_prefill a = {.heads = heads,
                                      .latent = m->kv_lora,
                                      .extra = m->rope_dim,
                                      .nope = m->nope_dim,
                                      .v_dim = m->v_dim,
                                      .record_bytes = record_bytes(l),
                                      .fp8 = l->load->fp8_history,
                                      .n_spans = 1,
                                      .span = {{.rows = l->rows, .end = positions}}};
    const struct gpu_launch attend = gpu_launch_mla_attend(&a, l->machine->shape);
    struct gpu_linear up = {0};
    if (l->step != KERNEL_PREFILL || !gpu_mla_expand(l->rows, positions) ||
        attend.kernel == GPU_NO_KERNEL)
        return false;
    kernel_list_add(l, "mla_gather", layers, gpu_launch_mla_gather(&a),
                    "a workgroup a page of history, which becomes rows of BF16");
    part(&up, heads * (m->nope_dim + m->v_dim), m->kv_lora);
    linear(l, "mla_expand", layers, up, positions);
    kernel_list_add(l, "mla_prefill", layers, attend,
                    "a workgroup %u rows of a head, over keys and values that are expanded for all "
                    "rows of a sequence; later rows come first",
                    attend.kernel == GPU_weir_mla_attend_wg ? 128u : 64u);
    return true;
}

static void mla(struct kernel_list *l) {
    const struct model *m = l->m;
    const uint32_t layers = model_mla_layers(m), tp = l->load->tp, dcp = l->load->dcp;
    const uint32_t heads = m->heads / tp, q_width = heads * (m->nope_dim + m->rope_dim);
    const uint32_t width = heads * m->v_dim, queries = l->rows;
    if (!layers)
        return;
    struct gpu_linear in = {0}, up = {0}, latent = {.steps = heads}, values = {.steps = heads};
    struct gpu_linear out = {0};
    dense_part(l, &in, m->q_lora ? m->q_lora : q_width, m->hidden);
    dense_part(l, &in, m->kv_lora + m->rope_dim, m->hidden);
    if (m->mla_gate)
        dense_part(l, &in, width, m->hidden);
    dense_part(l, &up, q_width, m->q_lora);
    part(&latent, m->kv_lora, m->nope_dim);
    part(&values, m->v_dim, m->kv_lora);
    dense_part(l, &out, m->hidden, width);
    linear(l, "mla_in", layers, in, l->rows);
    const struct gpu_mla_write write = {.latent = m->kv_lora,
                                        .extra = m->rope_dim,
                                        .record_bytes = record_bytes(l),
                                        .fp8 = l->load->fp8_history};
    kernel_list_add(l, "mla_write", layers, gpu_launch_mla_write(&write, l->rows),
                    "a workgroup a row, %s history", l->load->fp8_history ? "FP8" : "BF16");
    if (m->q_lora) {
        norm(l, "mla_q_norm", layers, m->q_lora);
        linear(l, "mla_q", layers, up, l->rows);
    }
    if (dcp == 1 && expanded(l, layers, heads)) {
        linear(l, "mla_out", layers, out, l->rows);
        return;
    }
    const uint32_t attended = queries < GPU_SKINNY_ROWS ? queries : GPU_SKINNY_ROWS;
    const uint32_t launches = layers * gpu_divide_up(queries, GPU_SKINNY_ROWS);
    linear(l, "mla_latent_queries", launches, latent, attended);
    if (dcp > 1)
        kernel_list_named(l, "dcp_gather_queries", "all_gather", layers, 0,
                          "the %u ranks that share a history need the queries of all %u heads", dcp,
                          heads * dcp);
    attention(l, layers, heads * dcp);
    if (dcp > 1)
        kernel_list_named(l, "dcp_merge", "all_to_all", layers, 0,
                          "results of %u ranks by their log-sum-exp, each rank its own %u heads",
                          dcp, heads);
    linear(l, "mla_values", launches, values, attended);
    linear(l, "mla_out", layers, out, l->rows);
}

/* --------------------------------------------------------------------------- feed-forward */

static void glu(struct kernel_list *l, const char *name, uint32_t layers, uint32_t cols) {
    const struct gpu_glu a = {.cols = cols};
    kernel_list_add(l, name, (uint64_t)layers * gpu_divide_up(l->rows, GPU_GLU_ROWS),
                    gpu_launch_glu(&a, l->rows < GPU_GLU_ROWS ? l->rows : GPU_GLU_ROWS),
                    "a workgroup a row and 2048 columns");
}

static void dense(struct kernel_list *l, uint32_t layers) {
    const struct model *m = l->m;
    const uint32_t inter = m->dense_inter / l->load->tp;
    struct gpu_linear in = {0}, out = {0};
    if (!layers)
        return;
    dense_part(l, &in, inter, m->hidden);
    dense_part(l, &in, inter, m->hidden);
    dense_part(l, &out, m->hidden, inter);
    linear(l, "dense_in", layers, in, l->rows);
    glu(l, "dense_glu", layers, inter);
    linear(l, "dense_out", layers, out, l->rows);
}

/* Each expert is read once for a tile of its choices. */
static void experts_many(struct kernel_list *l, uint32_t layers, const struct gpu_experts *up,
                         const struct gpu_experts *down) {
    const struct gpu_shape shape = l->machine->shape;
    kernel_list_add(l, "experts_up", layers, gpu_launch_experts_up_many(up, shape),
                    "tiles of an expert's choices, one at most that is not full");
    kernel_list_add(l, "experts_down", layers, gpu_launch_experts_down_many(down, shape),
                    "tiles of an expert's choices, one at most that is not full");
}

static void experts(struct kernel_list *l, uint32_t layers) {
    const struct model *m = l->m;
    const uint32_t inter = m->moe_inter / l->load->tp, width = model_expert_width(m);
    const struct gpu_experts up = {.slots = l->rows * m->top_k,
                                   .top_k = m->top_k,
                                   .rows = inter,
                                   .cols = width,
                                   .experts = m->experts,
                                   .bf16 = !m->mxfp4_experts};
    struct gpu_experts down = up;
    down.rows = width;
    down.cols = inter;
    const struct gpu_combine sum = {.top_k = m->top_k, .cols = width};
    const struct gpu_group group = {.slots = up.slots, .experts = up.experts};
    const bool many = gpu_experts_many(up.slots, m->experts, GPU_WAY_RULE);
    if (many)
        kernel_list_add(l, "experts_group", layers, gpu_launch_group(&group),
                        "%u choices of %u experts are worth sorting", up.slots, up.experts);
    if (many) {
        experts_many(l, layers, &up, &down);
    } else {
        kernel_list_add(l, "experts_up", layers, gpu_launch_experts_up(&up, l->machine->shape),
                        up.slots == up.top_k
                            ? "a workgroup 16 rows of an expert, its waves share the columns"
                            : "waves share the rows of all chosen experts");
        kernel_list_add(l, "experts_down", layers,
                        gpu_launch_experts_down(&down, l->machine->shape),
                        "waves share the rows of all chosen experts");
    }
    kernel_list_add(l, "experts_combine", layers,
                    gpu_launch_combine(&sum, l->rows, l->machine->shape), "a workgroup a row%s",
                    !m->latent         ? ", sums as f32"
                    : !m->latent_norm  ? ""
                    : l->load->tp == 1 ? ", with the norm"
                                       : ", without the norm, which follows the sum over ranks");
}

static void moe(struct kernel_list *l, uint32_t layers) {
    const struct model *m = l->m;
    const uint32_t tp = l->load->tp, shared = m->shared_experts * m->moe_inter / tp;
    struct gpu_linear in = {0}, out = {0};
    if (!layers)
        return;
    part(&in, m->experts, m->hidden);
    if (m->latent)
        dense_part(l, &in, m->latent, m->hidden);
    for (int i = 0; i < 2 && shared; i++)
        dense_part(l, &in, shared, m->hidden);
    linear(l, "moe_in", layers, in, l->rows);
    const struct gpu_route route = {
        .rows = l->rows, .experts = m->experts, .top_k = m->top_k, .groups = m->groups};
    kernel_list_add(l, "route", layers, gpu_launch_route(&route),
                    "a workgroup a row, up to %d experts and %d choices", GPU_EXPERTS_MOST,
                    GPU_ROUTE_MOST);
    if (shared)
        glu(l, "shared_glu", layers, shared);
    experts(l, layers);
    if (m->latent && m->latent_norm && tp > 1)
        norm(l, "latent_norm", layers, m->latent);
    /* The projection out of the latent space is cut by rows of its result; a rank adds its rows to
     * its part of the shared experts. */
    const uint32_t own = m->latent ? m->hidden / tp : 0;
    if (own) {
        dense_part(l, &out, own, m->latent);
        if (shared) {
            out.part[0].w2 = &present;
            out.part[0].cols2 = shared;
            out.part[0].fp8_2 = l->load->fp8_dense;
        }
    }
    if (shared && own < m->hidden)
        dense_part(l, &out, m->hidden - own, shared);
    if (out.n_parts)
        linear(l, "moe_out", layers, out, l->rows);
}

void kernel_list_step(struct kernel_list *l) {
    const struct model *m = l->m;
    const uint32_t moes = moe_layers(m), logits = l->step == KERNEL_PREFILL ? 1 : l->rows;
    const struct gpu_embed embed = {.cols = m->hidden};
    kernel_list_add(l, "embed", 1, gpu_launch_embed(&embed, l->rows), "a workgroup a row");
    mix_norm(l, "mix_norm", 2 * m->layers, l->rows);
    kda(l);
    mla(l);
    dense(l, m->layers - moes);
    moe(l, moes);
    /* Behind the embedding, attention and feed-forward of each layer, and the experts' sum. */
    all_reduce(l, 1 + 2 * m->layers + (m->latent ? moes : 0));
    mix_norm(l, "mix_norm_last", 1, logits);
    struct gpu_linear head = {0};
    part(&head, m->vocab / l->load->tp, m->hidden);
    linear(l, "head", 1, head, logits);
    struct gpu_sample sample = {.vocab = m->vocab};
    kernel_list_add(l, "sample", 1, gpu_launch_sample(&sample, logits, l->machine->shape),
                    "%u workgroups a row; rows by rules that it does not know are drawn on the CPU",
                    sample.members);
}
