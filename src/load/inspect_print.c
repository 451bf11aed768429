/* inspect_print.c: the report of `weir inspect` as text for people and as JSON for programs. */
#include "load/inspect.h"

#include "base/plural.h"

#include <string.h>

/* A byte count with a unit beside it: "1560860324864 bytes (1.56 TB)". */
static void print_bytes(FILE *out, const char *label, uint64_t bytes) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1000 && u < 5) {
        v /= 1000;
        u++;
    }
    fprintf(out, "  %-28s %20" PRIu64 " bytes  (%.2f %s)\n", label, bytes, v, unit[u]);
}

static void print_kinds(const struct inspect_report *r, FILE *out) {
    fprintf(out, "%-20s %10s %18s %20s %7s\n", "kind", "tensors", "parameters", "bytes", "share");
    for (int k = 0; k <= INSPECT_KINDS; k++) {
        const bool sum = k == INSPECT_KINDS;
        const struct inspect_total *t = sum ? &r->all : &r->kind[k];
        if (t->bytes == 0)
            continue;
        fprintf(out, "%-20s %10" PRIu64 " %18" PRIu64 " %20" PRIu64 " %6.2f%%\n",
                sum ? "total" : inspect_kind_name((enum inspect_kind)k), t->tensors, t->parameters,
                t->bytes, r->all.bytes ? 100.0 * (double)t->bytes / (double)r->all.bytes : 0.0);
    }
}

static bool same_layer(const struct inspect_layer *a, const struct inspect_layer *b) {
    return a->kda == b->kda && a->moe == b->moe && a->total.bytes == b->total.bytes;
}

/* Layers of one make share a line, with their numbers as far as they fit. */
static void print_layers(const struct inspect_report *r, FILE *out) {
    bool printed[MODEL_MAX_LAYERS] = {false};
    fprintf(out, "%-6s %-6s %-6s %18s %18s  %s\n", "layers", "mixer", "ffn", "parameters each",
            "bytes each", "numbers from 0");
    for (uint32_t first = 0; first < r->model.layers; first++) {
        char list[64] = "";
        uint32_t n = 0;
        if (printed[first])
            continue;
        for (uint32_t l = first; l < r->model.layers; l++) {
            const size_t used = strlen(list);
            if (!same_layer(&r->layer[first], &r->layer[l]))
                continue;
            printed[l] = true;
            n++;
            if (used < 40)
                snprintf(list + used, sizeof list - used, "%s%" PRIu32, used ? " " : "", l);
            else if (list[used - 1] != '.')
                snprintf(list + used, sizeof list - used, " ...");
        }
        fprintf(out, "%-6" PRIu32 " %-6s %-6s %18" PRIu64 " %18" PRIu64 "  %s\n", n,
                r->layer[first].kda ? "kda" : "mla", r->layer[first].moe ? "moe" : "dense",
                r->layer[first].total.parameters, r->layer[first].total.bytes, list);
    }
}

static void print_names(FILE *out, const char *label, const struct inspect_names *names) {
    if (names->count == 0)
        return;
    fprintf(out, "%s: %" PRIu64 "\n", label, names->count);
    for (uint32_t i = 0; i < names->kept; i++)
        fprintf(out, "  %s\n", names->name[i]);
    if (names->count > names->kept)
        fprintf(out, "  and %" PRIu64 " more\n", names->count - names->kept);
}

static void print_files(const struct inspect_report *r, FILE *out) {
    if (!r->has_weights) {
        fprintf(out, "no weights here: all counts follow from config.json\n");
        return;
    }
    fprintf(out, "files: %" PRIu32 " %s\n", r->shards, plural(r->shards, "shard", "shards"));
    if (r->shards_absent)
        fprintf(out, "shards not in the directory: %" PRIu32 "\n", r->shards_absent);
    print_bytes(out, "stored in the files", r->stored_bytes);
    if (r->claimed_bytes && r->claimed_bytes != r->stored_bytes)
        print_bytes(out, "claimed by the index", r->claimed_bytes);
    if (r->skipped)
        fprintf(out, "tensors left out on purpose: %" PRIu64 "\n", r->skipped);
    print_names(out, "missing tensors", &r->missing);
    print_names(out, "tensors that do not fit", &r->unfit);
    print_names(out, "unknown tensors (ignored)", &r->extra);
    if (inspect_complete(r))
        fprintf(out, "complete: every tensor is there with the right type and shape\n");
}

void inspect_print(const struct inspect_report *r, FILE *out) {
    const struct model *m = &r->model;
    fprintf(out, "%s\n", r->dir);
    fprintf(out,
            "%s: %" PRIu32 " %s (%" PRIu32 " KDA, %" PRIu32 " MLA), hidden %" PRIu32
            ", vocabulary %" PRIu32 ", context %" PRIu32 "\n",
            model_family_name(m->family), m->layers, plural(m->layers, "layer", "layers"),
            model_kda_layers(m), model_mla_layers(m), m->hidden, m->vocab, m->max_position);
    if (m->experts)
        fprintf(out,
                "experts: %" PRIu32 " a layer, %" PRIu32 " chosen, %" PRIu32 " shared, stored as "
                "%s\n",
                m->experts, m->top_k, m->shared_experts, m->mxfp4_experts ? "MXFP4" : "BF16");
    fprintf(out, "active parameters a token: %" PRIu64 "\n\n", r->active_parameters);
    print_kinds(r, out);
    fprintf(out, "\n");
    print_layers(r, out);
    fprintf(out, "\na sequence needs\n");
    print_bytes(out, "MLA history a token, f32", r->kv_bytes_per_token_f32);
    print_bytes(out, "MLA history a token, bf16", r->kv_bytes_per_token_bf16);
    print_bytes(out, "KDA state, recurrent, f32", r->state_recurrent_bytes);
    print_bytes(out, "KDA state, convolution, f32", r->state_conv_bytes);
    fprintf(out, "\n");
    print_files(r, out);
}

static json_t *total_json(const struct inspect_total *t) {
    return json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)t->tensors, "parameters",
                     (json_int_t)t->parameters, "bytes", (json_int_t)t->bytes);
}

static json_t *names_json(const struct inspect_names *names) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < names->kept; i++)
        json_array_append_new(list, json_string(names->name[i]));
    return json_pack("{s:I, s:o}", "count", (json_int_t)names->count, "first", list);
}

static json_t *layers_json(const struct inspect_report *r) {
    json_t *list = json_array();
    for (uint32_t l = 0; l < r->model.layers; l++) {
        json_t *o = total_json(&r->layer[l].total);
        json_object_set_new(o, "layer", json_integer(l));
        json_object_set_new(o, "mixer", json_string(r->layer[l].kda ? "kda" : "mla"));
        json_object_set_new(o, "ffn", json_string(r->layer[l].moe ? "moe" : "dense"));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *kinds_json(const struct inspect_report *r) {
    json_t *o = json_object();
    for (int k = 0; k < INSPECT_KINDS; k++)
        json_object_set_new(o, inspect_kind_name((enum inspect_kind)k), total_json(&r->kind[k]));
    return o;
}

json_t *inspect_json(const struct inspect_report *r) {
    const struct model *m = &r->model;
    json_t *o = json_object();
    json_t *dir = json_string(r->dir); /* NULL where the path is not UTF-8 */
    json_object_set_new(o, "dir", dir ? dir : json_null());
    json_object_set_new(o, "family", json_string(model_family_name(m->family)));
    json_object_set_new(o, "model",
                        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "layers",
                                  (int)m->layers, "kda_layers", (int)model_kda_layers(m),
                                  "mla_layers", (int)model_mla_layers(m), "hidden", (int)m->hidden,
                                  "vocab", (int)m->vocab, "max_position", (int)m->max_position,
                                  "experts", (int)m->experts, "experts_per_token", (int)m->top_k,
                                  "shared_experts", (int)m->shared_experts));
    json_object_set_new(o, "expert_dtype",
                        m->experts ? json_string(m->mxfp4_experts ? "MXFP4" : "BF16")
                                   : json_null());
    json_object_set_new(o, "total", total_json(&r->all));
    json_object_set_new(o, "active_parameters", json_integer((json_int_t)r->active_parameters));
    json_object_set_new(o, "kinds", kinds_json(r));
    json_object_set_new(o, "layers", layers_json(r));
    json_object_set_new(o, "sequence",
                        json_pack("{s:I, s:I, s:I, s:I}", "kv_bytes_per_token_f32",
                                  (json_int_t)r->kv_bytes_per_token_f32, "kv_bytes_per_token_bf16",
                                  (json_int_t)r->kv_bytes_per_token_bf16, "state_recurrent_bytes",
                                  (json_int_t)r->state_recurrent_bytes, "state_conv_bytes",
                                  (json_int_t)r->state_conv_bytes));
    json_object_set_new(o, "has_weights", json_boolean(r->has_weights));
    json_object_set_new(o, "complete", json_boolean(inspect_complete(r)));
    json_object_set_new(o, "shards", json_integer(r->shards));
    json_object_set_new(o, "shards_absent", json_integer(r->shards_absent));
    json_object_set_new(o, "stored_bytes", json_integer((json_int_t)r->stored_bytes));
    json_object_set_new(o, "claimed_bytes", json_integer((json_int_t)r->claimed_bytes));
    json_object_set_new(o, "skipped_tensors", json_integer((json_int_t)r->skipped));
    json_object_set_new(o, "missing", names_json(&r->missing));
    json_object_set_new(o, "unfit", names_json(&r->unfit));
    json_object_set_new(o, "extra", names_json(&r->extra));
    return o;
}
