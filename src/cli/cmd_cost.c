/* cmd_cost.c: `weir cost`: what a rate of tokens costs at a price. */
#include "bench/sweep.h"
#include "cli/command.h"
#include "cli/io.h"
#include "machine/gpus.h"
#include "machine/prices.h"
#include "trace/run.h"

#include <math.h>
#include <string.h>

struct cost_args {
    double total, output, input;
    double price, kilowatts;
    char *machine, *prices, *run, *versus;
    bool list, json;
};

static const struct option_spec rate_options[] = {
    {.name = "tokens-per-second-per-gpu",
     .value = "T",
     .type = OPTION_REAL,
     .offset = offsetof(struct cost_args, total),
     .min = 1e-9,
     .max = 1e12,
     .help = "Tokens of prompts and answers together that one GPU gets through in a second."},
    {.name = "output-tokens-per-second-per-gpu",
     .value = "T",
     .type = OPTION_REAL,
     .offset = offsetof(struct cost_args, output),
     .min = 1e-9,
     .max = 1e12,
     .help =
         "Those of answers alone: adds what a token of them costs if they bore the whole price."},
    {.name = "input-tokens-per-second-per-gpu",
     .value = "T",
     .type = OPTION_REAL,
     .offset = offsetof(struct cost_args, input),
     .min = 1e-9,
     .max = 1e12,
     .help = "Those of prompts alone, likewise."},
    {.name = "run",
     .value = "DIR",
     .type = OPTION_TEXT,
     .offset = offsetof(struct cost_args, run),
     .against = "tokens-per-second-per-gpu output-tokens-per-second-per-gpu "
                "input-tokens-per-second-per-gpu",
     .help = "Take the rates from the directory of a run (weir bench replay --out DIR)."},
};
static const struct option_spec price_options[] = {
    {.name = "price",
     .value = "DOLLARS",
     .type = OPTION_REAL,
     .offset = offsetof(struct cost_args, price),
     .min = 1e-6,
     .max = 1e6,
     .against = "prices machine",
     .help = "Price of one GPU for an hour."},
    {.name = "kilowatts",
     .value = "KW",
     .type = OPTION_REAL,
     .offset = offsetof(struct cost_args, kilowatts),
     .min = 1e-6,
     .max = 1e4,
     .against = "prices machine",
     .help = "With --price: all-in power of one GPU, for tokens per megawatt and joules."},
    {.name = "machine",
     .value = "NAME",
     .type = OPTION_TEXT,
     .offset = offsetof(struct cost_args, machine),
     .help = "Take the price of this GPU from --prices: mi355x, b300, h200 and so on."},
    {.name = "prices",
     .value = "TABLE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct cost_args, prices),
     .help = "Name of a table in the program (see --list), or a JSON file of the same form."},
    {.name = "versus",
     .value = "T@MACHINE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct cost_args, versus),
     .help = "Compare with T tokens per second and GPU (or the directory of a run) on another "
             "machine of the same table; with --price another price stands behind the @."},
};
static const struct option_spec print_options[] = {
    {.name = "list",
     .type = OPTION_FLAG,
     .offset = offsetof(struct cost_args, list),
     .help = "Print the tables of prices in the program, or the one given with --prices."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct cost_args, json),
     .help = "Print one JSON object."},
};
static const struct option_group cost_groups[] = {
    {"Rate", rate_options, 4, 0},
    {"Price", price_options, 5, 0},
    {"Output", print_options, 2, 0},
};

/* One side of a comparison. */
struct side {
    double total, output, input; /* tokens/s and GPU; 0: not known */
    double measured_joules;      /* of a token, NAN: not measured */
    char machine[64];            /* "" with a price alone */
    const char *state;           /* of a run that is not comparable: why; else NULL */
    double dollars, kilowatts;
    struct cost cost;
};

/* ------------------------------------------------------------------------------------- gathering
 */

static weir_status rates_of_run(const char *dir, struct side *out, weir_error *err) {
    struct run run;
    if (sweep_is(dir))
        return weir_fail(err, WEIR_BAD_VALUE, dir,
                         "is a directory of several runs: name one of those in it");
    weir_status status = run_read(dir, &run, err);
    if (status)
        return status;
    struct run_summary *s = malloc(sizeof *s);
    status = s ? run_summarise(&run, s, err)
               : weir_fail(err, WEIR_NO_MEMORY, dir, "no memory to sum it up");
    if (!status && !(s->per_gpu_total > 0))
        status = weir_fail(err, WEIR_BAD_FILE, dir, "has no answered call of the profiling phase");
    if (!status) {
        out->total = s->per_gpu_total;
        out->output = s->per_gpu_out;
        out->input = s->per_gpu_in;
        const char *state = run_state(&run, s);
        out->state = state[0] ? state : NULL;
        out->measured_joules = s->joules / (double)(s->sum_in + s->sum_out);
        if (!out->machine[0] && run.subject.hardware)
            snprintf(out->machine, sizeof out->machine, "%s", run.subject.hardware);
    }
    free(s);
    run_free(&run);
    return status;
}

static weir_status price_of(const struct price_table *t, struct side *out, weir_error *err) {
    const struct price_row *row;
    weir_status s = price_find(t, out->machine, &row, err);
    if (s) {
        if (err)
            snprintf(err->where, sizeof err->where, "--machine");
        return s;
    }
    snprintf(out->machine, sizeof out->machine, "%s", row->machine);
    out->dollars = row->dollars;
    out->kilowatts = row->kilowatts;
    return WEIR_OK;
}

static weir_status first_side(const struct cost_args *a, const struct price_table *t,
                              struct side *out, weir_error *err) {
    *out = (struct side){.total = a->total,
                         .output = a->output,
                         .input = a->input,
                         .measured_joules = NAN,
                         .dollars = a->price,
                         .kilowatts = a->kilowatts > 0 ? a->kilowatts : NAN};
    if (a->machine)
        snprintf(out->machine, sizeof out->machine, "%s", a->machine);
    weir_status s = a->run ? rates_of_run(a->run, out, err) : WEIR_OK;
    if (!s && t) {
        if (!out->machine[0])
            return weir_fail(err, WEIR_BAD_VALUE, "--machine", "is missing: which row of table %s?",
                             t->name);
        s = price_of(t, out, err);
    }
    if (!s)
        out->cost = cost_of(out->total, out->dollars, out->kilowatts);
    return s;
}

/* A whole number of a plain text, without regard to the locale. */
static bool plain_number(const char *text, double *out) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    bool is = v && json_is_number(v);
    *out = is ? json_number_value(v) : NAN;
    json_decref(v);
    return is;
}

static weir_status second_side(const struct cost_args *a, const struct price_table *t,
                               struct side *out, weir_error *err) {
    const char *at = strrchr(a->versus, '@');
    char left[4096];
    *out = (struct side){.measured_joules = NAN, .kilowatts = NAN};
    if (!at || at == a->versus || !at[1] || (size_t)(at - a->versus) >= sizeof left)
        return weir_fail(err, WEIR_BAD_VALUE, "--versus", "'%.80s' is not T@%s, as in 6083@%s",
                         a->versus, t ? "MACHINE" : "PRICE", t ? "b300" : "2.26");
    snprintf(left, sizeof left, "%.*s", (int)(at - a->versus), a->versus);
    weir_status s = WEIR_OK;
    if (t)
        snprintf(out->machine, sizeof out->machine, "%s", at + 1);
    else if (!plain_number(at + 1, &out->dollars) || !(out->dollars > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--versus",
                         "'%.40s' is no price above 0; names of machines need --prices", at + 1);
    if (!plain_number(left, &out->total))
        s = rates_of_run(left, out, err);
    else if (!(out->total > 0))
        s = weir_fail(err, WEIR_BAD_VALUE, "--versus", "'%.40s' is no rate above 0", left);
    if (!s && t) {
        s = price_of(t, out, err);
        if (s && err)
            snprintf(err->where, sizeof err->where, "--versus");
    }
    if (!s)
        out->cost = cost_of(out->total, out->dollars, out->kilowatts);
    return s;
}

static weir_status check(const struct cost_args *a, weir_error *err) {
    if (!a->run && !(a->total > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--tokens-per-second-per-gpu",
                         "is missing; --run DIR takes it from a run");
    if (a->run && (a->total > 0 || a->output > 0 || a->input > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--run",
                         "gives the rates: it cannot stand beside another rate");
    if (a->price > 0 && (a->prices || a->machine))
        return weir_fail(err, WEIR_BAD_VALUE, "--price",
                         "is a price of one's own: it cannot stand beside --machine or --prices");
    if (a->kilowatts > 0 && !(a->price > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--kilowatts",
                         "goes with --price; a table has its own");
    if (!(a->price > 0) && !a->prices)
        return weir_fail(err, WEIR_BAD_VALUE, "--price",
                         "is missing, and so is --prices TABLE; weir cost --list shows the tables");
    return WEIR_OK;
}

/* -------------------------------------------------------------------------------------- printing
 */

static json_t *real(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *spec_json(const char *machine) {
    struct gpu_spec g;
    if (!machine[0] || gpu_spec_find(machine, &g, NULL))
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "tdp_watts",
                     real(g.tdp_watts), "fp4_tflops", real(g.fp4_tflops), "fp8_tflops",
                     real(g.fp8_tflops), "bf16_tflops", real(g.bf16_tflops), "memory_gb",
                     real(g.memory_gb), "memory_tb_per_s", real(g.memory_tb_per_s),
                     "scale_up_gb_per_s", real(g.scale_up_gb_per_s), "scale_up_gpus",
                     real(g.scale_up_gpus), "scale_out_gbit_per_s", real(g.scale_out_gbit_per_s),
                     "note", g.note);
}

/* Costs if these tokens alone bore the price; null where their rate is not known. */
static json_t *part_json(double rate, const struct side *s) {
    if (!(rate > 0))
        return json_null();
    struct cost c = cost_of(rate, s->dollars, s->kilowatts);
    return json_pack("{s:o, s:o, s:o}", "tokens_per_second_per_gpu", real(rate),
                     "tokens_per_dollar", real(c.tokens_per_dollar), "dollars_per_million",
                     real(c.dollars_per_million));
}

static json_t *side_json(const struct side *s) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?}",
                     "tokens_per_dollar", real(s->cost.tokens_per_dollar), "dollars_per_million",
                     real(s->cost.dollars_per_million), "tokens_per_second_per_megawatt",
                     real(s->cost.tokens_per_second_per_megawatt), "joules_per_token",
                     real(s->cost.joules_per_token), "joules_per_token_measured",
                     real(s->measured_joules), "tokens_per_second_per_gpu", real(s->total),
                     "output", part_json(s->output, s), "input", part_json(s->input, s), "machine",
                     s->machine[0] ? json_string(s->machine) : json_null(), "price",
                     real(s->dollars), "kilowatts", real(s->kilowatts), "state", s->state);
}

static json_t *table_head_json(const struct price_table *t) {
    return t ? json_pack("{s:s, s:s, s:s}", "name", t->name, "date", t->date, "source", t->source)
             : json_null();
}

static json_t *cost_json(const struct side *a, const struct side *b, const struct price_table *t) {
    json_t *o = side_json(a);
    if (!o)
        return NULL;
    json_t *versus = b ? side_json(b) : json_null();
    if (b) {
        double x = a->cost.tokens_per_dollar, y = b->cost.tokens_per_dollar;
        json_object_set_new(versus, "advantage", real(cost_advantage(x, y)));
        json_object_set_new(versus, "saving", real(cost_saving(x, y)));
        json_object_set_new(versus, "rate_advantage", real(a->total / b->total - 1));
    }
    json_object_set_new(o, "prices", table_head_json(t));
    json_object_set_new(o, "specification", spec_json(a->machine));
    json_object_set_new(o, "versus", versus);
    return o;
}

static void print_part(const char *name, double rate, const struct side *s) {
    if (!(rate > 0))
        return;
    struct cost c = cost_of(rate, s->dollars, s->kilowatts);
    printf("  %-9s tokens alone      %14.1f a second, $%.6f a million\n", name, rate,
           c.dollars_per_million);
}

static void print_side(const struct side *s) {
    printf("%s: %.6g tokens/s and GPU at $%.6g per GPU-hour\n",
           s->machine[0] ? s->machine : "price", s->total, s->dollars);
    if (s->state)
        printf("  not comparable with other results: the run is %s\n", s->state);
    printf("  tokens per dollar          %18.1f  (%.4f M)\n", s->cost.tokens_per_dollar,
           s->cost.tokens_per_dollar / 1e6);
    printf("  dollars per million tokens %18.7f\n", s->cost.dollars_per_million);
    if (isfinite(s->kilowatts)) {
        printf("  tokens/s per megawatt      %18.1f  (%.6g kW all-in per GPU)\n",
               s->cost.tokens_per_second_per_megawatt, s->kilowatts);
        printf("  joules per token, modelled %18.6f\n", s->cost.joules_per_token);
    }
    if (isfinite(s->measured_joules))
        printf("  joules per token, measured %18.6f\n", s->measured_joules);
    print_part("output", s->output, s);
    print_part("input", s->input, s);
}

static void print_cost(const struct side *a, const struct side *b, const struct price_table *t) {
    if (t)
        printf("Prices: %s (%s; %s)\n", t->name, t->date, t->source);
    print_side(a);
    if (!b)
        return;
    print_side(b);
    double x = a->cost.tokens_per_dollar, y = b->cost.tokens_per_dollar;
    printf("The first over the second: tokens/s %+.2f %%, tokens per dollar %+.2f %%, "
           "price of a token %+.2f %%\n",
           100 * (a->total / b->total - 1), 100 * cost_advantage(x, y), -100 * cost_saving(x, y));
}

/* ------------------------------------------------------------------------------------------ list
 */

static json_t *table_json(const struct price_table *t) {
    json_t *o = table_head_json(t), *machines = json_object();
    for (size_t i = 0; i < t->n; i++)
        json_object_set_new(machines, t->row[i].machine,
                            json_pack("{s:o, s:o}", "dollars", real(t->row[i].dollars), "kilowatts",
                                      real(t->row[i].kilowatts)));
    json_object_set_new(o, "machines", machines);
    return o;
}

static void print_table(const struct price_table *t) {
    printf("%s (%s; %s)\n", t->name, t->date, t->source);
    for (size_t i = 0; i < t->n; i++) {
        printf("  %-10s $%7.3f per GPU-hour", t->row[i].machine, t->row[i].dollars);
        if (isfinite(t->row[i].kilowatts))
            printf("  %5.2f kW", t->row[i].kilowatts);
        printf("\n");
    }
}

static weir_status list(const struct cost_args *a, weir_error *err) {
    json_t *all = json_array();
    weir_status s = WEIR_OK;
    for (size_t i = 0; !s && (a->prices ? i == 0 : price_table_name(i) != NULL); i++) {
        struct price_table t;
        s = price_table_open(a->prices ? a->prices : price_table_name(i), &t, err);
        if (s)
            break;
        if (a->json)
            json_array_append_new(all, table_json(&t));
        else
            print_table(&t);
        price_table_free(&t);
    }
    if (s || !a->json) {
        json_decref(all);
        return s;
    }
    return io_print_json(json_pack("{s:o}", "tables", all), err);
}

static int run_cost(void *record, weir_error *err) {
    const struct cost_args *a = record;
    struct price_table table = {0};
    struct side first, second;
    if (a->list)
        return list(a, err) ? command_exit_status(err) : 0;
    weir_status s = check(a, err);
    if (!s && a->prices)
        s = price_table_open(a->prices, &table, err);
    const struct price_table *t = a->prices ? &table : NULL;
    if (!s)
        s = first_side(a, t, &first, err);
    if (!s && a->versus)
        s = second_side(a, t, &second, err);
    const struct side *b = a->versus ? &second : NULL;
    if (!s && a->json)
        s = io_print_json(cost_json(&first, b, t), err);
    else if (!s)
        print_cost(&first, b, t);
    price_table_free(&table);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section cost_sections[] = {
    {"DESCRIPTION",
     "Says what T tokens per second and GPU mean at a price: tokens per dollar (T x 3600 / price), "
     "dollars per million tokens, tokens per second for each megawatt of provisioned power, and "
     "joules per token by that power. T counts the tokens of prompts, reused ones too, and of "
     "answers.\n\n"
     "Prices come from one named table, from a JSON file of the same form, or from --price. A "
     "table is one column of one source at one time, and a calculation uses one table: figures of "
     "different tables cannot be compared. Where --versus is given, the advantage is the ratio of "
     "tokens per dollar less 1, and the saving 1 less its reciprocal."},
    {"FILES",
     "A table of prices is {\"name\", \"date\", \"source\", \"machines\": {NAME: {\"dollars\", "
     "\"kilowatts\"}}}: dollars per GPU and hour, and the all-in provisioned kilowatts of one GPU, "
     "which may be left out."},
    {"JSON",
     "{\"tokens_per_dollar\", \"dollars_per_million\", \"tokens_per_second_per_megawatt\", "
     "\"joules_per_token\" (modelled), \"joules_per_token_measured\" (of a run with samples of "
     "power), \"tokens_per_second_per_gpu\", \"output\", \"input\", \"machine\", \"price\", "
     "\"kilowatts\", \"state\" (of a run that is not comparable: scaled, invalid, cancelled or "
     "aborted), \"prices\": {\"name\", \"date\", \"source\"}, \"specification\" (published "
     "figures of the GPU), \"versus\": the same keys, \"advantage\", \"saving\", "
     "\"rate_advantage\"}. Unknown is null. With --list {\"tables\": [...]}."},
    {"EXAMPLES",
     "  weir cost --tokens-per-second-per-gpu 7567 --machine mi355x --prices tco-2026-07-owning\n"
     "  weir cost --tokens-per-second-per-gpu 7567 --machine mi355x --prices tco-2026-07-owning "
     "--versus 6083@b300\n"
     "  weir cost --run results/c16 --price 2.50\n"
     "  weir cost --list"},
};

const struct command command_cost = {
    .name = "cost",
    .synopsis =
        "(--tokens-per-second-per-gpu T | --run DIR) (--price P | --machine M --prices TABLE)",
    .summary = "say what tokens cost in dollars, megawatts and joules",
    .options = {cost_groups, 3},
    .record_bytes = sizeof(struct cost_args),
    .section = cost_sections,
    .n_sections = sizeof cost_sections / sizeof cost_sections[0],
    .run = run_cost,
};
