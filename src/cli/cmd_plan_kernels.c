/* cmd_plan_kernels.c: `weir plan kernels`: which variant of a GPU kernel each operation takes. */
#include "cli/command.h"
#include "cli/io.h"
#include "model/presets.h"
#include "plan/kernels.h"

#include <string.h>

struct plan_kernels_args {
    char *machine, *model;
    int preset, history, dense;
    uint32_t tp, dcp, batch, context, prompt, draft;
    bool json;
};

#define AT(FIELD) offsetof(struct plan_kernels_args, FIELD)
static const struct option_spec what_options[] = {
    {.name = "machine",
     .value = "NAME",
     .type = OPTION_TEXT,
     .offset = AT(machine),
     .min = 1,
     .required = true,
     .help = "A GPU that there are rules for: h200, b300 or mi355x."},
    {.name = "preset",
     .value = "P",
     .type = OPTION_CHOICE,
     .offset = AT(preset),
     .choices = "kimi-k3|kimi-linear|kimi-k2|mid|tiny",
     .fallback = "kimi-k3",
     .offered = "kimi-k3|kimi-linear|mid|tiny",
     .refusal = "this build does not run that family",
     .against = "model",
     .help = "Dimensions of a published model."},
    {.name = "model",
     .value = "DIR",
     .type = OPTION_TEXT,
     .offset = AT(model),
     .min = 1,
     .help = "Those of a checkpoint's config.json instead."},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(tp),
     .min = 1,
     .max = 1024,
     .fallback = "1",
     .help = "Ranks that share each layer; the shapes are those of one of them."},
    {.name = "decode-context-parallel-size",
     .alias = "dcp",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(dcp),
     .min = 1,
     .max = 1024,
     .fallback = "1",
     .help = "Of these, ranks that share the attention history of a sequence."},
};
static const struct option_spec load_options[] = {
    {.name = "batch",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(batch),
     .min = 1,
     .max = 65536,
     .fallback = "1",
     .help = "Sequences of a step."},
    {.name = "context",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(context),
     .min = 1,
     .max = 16777216,
     .fallback = "32768",
     .help = "Tokens of history of each."},
    {.name = "draft",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(draft),
     .min = 0,
     .max = 64,
     .fallback = "0",
     .help = "Drafted tokens that a step verifies beside each sequence's own; 0: it decodes."},
    {.name = "prompt",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(prompt),
     .min = 0,
     .max = 1048576,
     .fallback = "0",
     .help = "Add a step that reads so many tokens of one prompt."},
    {.name = "kv-cache-dtype",
     .value = "T",
     .type = OPTION_CHOICE,
     .offset = AT(history),
     .choices = "bf16|fp8",
     .fallback = "bf16",
     .help = "Format of the attention history."},
    {.name = "dense-dtype",
     .value = "T",
     .type = OPTION_CHOICE,
     .offset = AT(dense),
     .choices = "bf16|fp8",
     .fallback = "bf16",
     .help = "Format of BF16 matrices but router, head and kv_b."},
};
static const struct option_spec print_options[] = {
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object."},
};
static const struct option_group groups[] = {
    {"What", what_options, sizeof what_options / sizeof *what_options, 0},
    {"Load", load_options, sizeof load_options / sizeof *load_options, 0},
    {"Output", print_options, 1, 0},
};

/* -------------------------------------------------------------------------------------- printing
 */

static double waste_of(const struct kernel_entry *e) {
    return e->padded ? (double)(e->padded - e->heads) / e->padded : 0;
}

static json_t *count(uint64_t n) {
    return n ? json_integer((json_int_t)n) : json_null();
}

static json_t *way_json(const struct kernel_way *w) {
    return json_pack("{s:s, s:o, s:s, s:o, s:I, s:o}", "variant", w->variant, "workgroups",
                     count(w->workgroups), "reason", w->reason, "threads", count(w->threads),
                     "shared_bytes", (json_int_t)w->shared_bytes, "resident", count(w->resident));
}

static json_t *entry_json(const struct kernel_entry *e, const struct kernel_machine *machine) {
    json_t *o = json_pack("{s:s}", "name", e->name);
    json_t *way = way_json(&e->takes);
    json_object_update(o, way);
    json_decref(way);
    json_object_set_new(o, "step", json_string(kernel_step_name(e->step)));
    json_object_set_new(o, "kernel", e->kernel ? json_string(e->kernel) : json_null());
    json_object_set_new(o, "launches", json_integer((json_int_t)e->launches));
    json_object_set_new(
        o, "units_share",
        e->takes.workgroups
            ? json_real(occupancy_share(&machine->device, e->takes.workgroups > UINT32_MAX
                                                              ? UINT32_MAX
                                                              : (uint32_t)e->takes.workgroups))
            : json_null());
    json_object_set_new(o, "heads", count(e->heads));
    json_object_set_new(o, "padded_heads", count(e->padded));
    json_object_set_new(o, "padding_waste", e->padded ? json_real(waste_of(e)) : json_null());
    json_object_set_new(o, "no_kernel_yet", e->has_other ? way_json(&e->other) : json_null());
    return o;
}

static json_t *plan_json(const struct kernel_plan *p, const struct kernel_machine *machine) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->n; i++)
        json_array_append_new(list, entry_json(&p->entry[i], machine));
    return json_pack("{s:{s:s, s:s, s:I, s:I, s:I}, s:o}", "machine", "name", machine->name,
                     "architecture", machine->architecture, "compute_units",
                     (json_int_t)machine->device.compute_units, "local_bytes",
                     (json_int_t)machine->device.local_bytes, "local_unit_bytes",
                     (json_int_t)machine->device.local_unit_bytes, "kernels", list);
}

static void print_number(uint64_t n, int width) {
    if (n)
        printf(" %*llu", width, (unsigned long long)n);
    else
        printf(" %*s", width, "-");
}

static void print_entry(const struct kernel_entry *e) {
    printf("%-19s %-31s", e->name, e->takes.variant);
    print_number(e->launches, 8);
    print_number(e->takes.workgroups, 10);
    print_number(e->takes.threads, 7);
    print_number(e->takes.shared_bytes, 9);
    print_number(e->takes.resident, 5);
    printf("%s\n", e->kernel ? "" : "  no kernel yet");
    if (e->padded)
        printf("    heads: %u as %u, %.1f %% of the rows are padding\n", e->heads, e->padded,
               100 * waste_of(e));
    printf("    %s\n", e->takes.reason);
    if (e->has_other)
        printf("    no kernel yet: %s, %llu workgroups: %s\n", e->other.variant,
               (unsigned long long)e->other.workgroups, e->other.reason);
}

static void print_plan(const struct kernel_plan *p, const struct kernel_machine *machine,
                       const char *model, const struct plan_kernels_args *a) {
    const struct occupancy_device *d = &machine->device;
    printf("%s on %s (%s): %u units of %.0f KiB local memory in pieces of %u bytes", model,
           machine->name, machine->architecture, d->compute_units, d->local_bytes / 1024.0,
           d->local_unit_bytes);
    if (d->local_reserved_bytes)
        printf(", %u more a workgroup", d->local_reserved_bytes);
    printf("\none rank of %u; dense weights in %s; history of %u tokens in %s", a->tp,
           a->dense ? "FP8" : "BF16", a->context, a->history ? "FP8" : "BF16");
    if (a->dcp > 1)
        printf(", shared by %u ranks", a->dcp);
    printf("\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct kernel_entry *e = &p->entry[i];
        if (!i || e->step != e[-1].step) {
            if (e->step == KERNEL_PREFILL)
                printf("\n%s: one prompt, rows: %u\n", kernel_step_name(e->step), a->prompt);
            else
                printf("\n%s: sequences: %u, rows of each: %u\n", kernel_step_name(e->step),
                       a->batch, 1 + a->draft);
            printf("%-19s %-31s %8s %10s %7s %9s %5s\n", "operation", "variant", "launches",
                   "workgroups", "threads", "local", "fit");
        }
        print_entry(e);
    }
    printf("\nLaunches are of a step, workgroups, threads and bytes of local memory (LDS, shared) "
           "of one launch; fit: workgroups a unit holds by local memory and threads, registers not "
           "counted.\nweir runs on one device so far: ranks beyond one are shapes, and what has "
           "\"no kernel yet\" is not run.\n");
}

static int run_plan_kernels(void *record, weir_error *err) {
    static const char *const preset[] = {"kimi-k3", "kimi-linear", "kimi-k2", "mid", "tiny"};
    const struct plan_kernels_args *a = record;
    const struct kernel_load load = {.tp = a->tp,
                                     .dcp = a->dcp,
                                     .batch = a->batch,
                                     .context = a->context,
                                     .prompt = a->prompt,
                                     .draft = a->draft,
                                     .fp8_history = a->history == 1,
                                     .fp8_dense = a->dense == 1};
    const char *name = a->model ? a->model : preset[a->preset];
    struct kernel_machine machine;
    struct model model;
    weir_status s = kernel_machine_find(a->machine, &machine, err);
    if (!s && a->model)
        s = model_open(a->model, &model, err);
    else if (!s)
        s = model_parse(model_preset(name), strlen(model_preset(name)), name, &model, err);
    struct kernel_plan *plan = s ? NULL : malloc(sizeof *plan);
    if (!s && !plan)
        s = weir_fail(err, WEIR_NO_MEMORY, "plan", "no memory for its entries");
    if (!s)
        s = kernel_plan_make(&model, &machine, &load, plan, err);
    if (!s && a->json)
        s = io_print_json(plan_json(plan, &machine), err);
    else if (!s)
        print_plan(plan, &machine, name, a);
    free(plan);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section sections[] = {
    {"DESCRIPTION",
     "Says which kernel each operation of a model's step takes on a GPU, with how many workgroups "
     "and how much local memory, and why. Nothing is run, and no GPU is needed.\n\n"
     "Where weir has a kernel, its own rules of launches are asked for the shape that one rank "
     "has. Beside them stand rules that were published for these machines: how heads are padded, "
     "into how many partitions a history is cut, how many columns a workgroup takes where drafts "
     "are verified, into how many groups the chunks of a prompt, and what reads a history of FP8 "
     "values. What they name and weir lacks is marked \"no kernel yet\".\n\n"
     "Cutting by --tensor-parallel-size is by heads, by rows of the vocabulary and by intermediate "
     "columns; the router, projections into latent spaces and their norms are whole on each rank, "
     "the projection out of the latent space of the experts is cut by rows. With "
     "--decode-context-parallel-size each rank attends for the heads of all ranks that share a "
     "history, over its part of the positions."},
    {"JSON",
     "{\"machine\": {\"name\", \"architecture\", \"compute_units\", \"local_bytes\", "
     "\"local_unit_bytes\"}, \"kernels\": [{\"name\", \"variant\", \"workgroups\", \"reason\", "
     "\"threads\", \"shared_bytes\", \"resident\" (workgroups a unit holds by local memory and "
     "threads), \"step\" (decode, verify or prefill), \"kernel\" (of weir; null: no kernel yet), "
     "\"launches\" (of a step), \"units_share\", \"heads\", \"padded_heads\", \"padding_waste\", "
     "\"no_kernel_yet\": null or the variant that the rules name where weir's kernel is not it: "
     "{\"variant\", \"workgroups\", \"reason\", \"threads\", \"shared_bytes\", "
     "\"resident\"}}]}. Unknown is null."},
    {"EXAMPLES",
     "  weir plan kernels --machine mi355x --tp 8 --draft 3\n"
     "  weir plan kernels --machine mi355x --tp 8 --dcp 8 --context 142000 --kv-cache-dtype fp8\n"
     "  weir plan kernels --machine h200 --preset kimi-linear --batch 32 --prompt 8192 --json"},
};

const struct command command_plan_kernels = {
    .name = "plan kernels",
    .synopsis = "--machine NAME [--preset P | --model DIR] [--tensor-parallel-size N] [--batch N] "
                "[--context N] [--draft N] [--prompt N] [--json]",
    .summary = "say which GPU kernels a model's step takes, and why",
    .options = {groups, sizeof groups / sizeof *groups},
    .record_bytes = sizeof(struct plan_kernels_args),
    .section = sections,
    .n_sections = sizeof sections / sizeof *sections,
    .run = run_plan_kernels,
};
