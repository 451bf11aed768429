/* cmd_generate.c: `weir generate`: one completion, streamed to standard output or as one JSON
 * object. */
#include "base/clock.h"
#include "base/file.h"
#include "base/plural.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/local.h"
#include "cli/sampling_args.h"
#include "text/stop.h"
#include "text/utf8.h"

#include <string.h>
#include <unistd.h>

struct generate_args {
    struct engine_args engine;
    struct sampling_args sampling;
    char *prompt, *prompt_ids, *chat;
    bool ignore_eos, stats, json;
};

#define AT(field) offsetof(struct generate_args, field)

static const struct option_spec prompt_options[] = {
    {.name = "prompt",
     .value = "TEXT",
     .type = OPTION_TEXT,
     .offset = AT(prompt),
     .help = "Continue this text. It is taken as it is, without chat markup."},
    {.name = "prompt-ids",
     .value = "1,2,3",
     .type = OPTION_TEXT,
     .offset = AT(prompt_ids),
     .help = "Continue these token ids."},
    {.name = "chat",
     .value = "FILE.json",
     .type = OPTION_TEXT,
     .offset = AT(chat),
     .help = "Answer a chat request: a JSON object with messages (and tools, tool_choice, "
             "reasoning_effort ...) as in the API, or an array of messages. -: standard input."},
};
static const struct option_spec output_options[] = {
    {.name = "ignore-eos",
     .type = OPTION_FLAG,
     .offset = AT(ignore_eos),
     .help = "Go on behind the end token."},
    {.name = "stats",
     .type = OPTION_FLAG,
     .offset = AT(stats),
     .help = "Print tokens and times on standard error."},
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object."},
};

enum { MAX_STOP_IDS = 8 };

/* One answer on its way out. */
struct answer {
    const struct generate_args *args;
    const struct tokenizer *tokenizer;
    struct chat_parser *parser; /* chat answers */
    struct chat_input in;       /* what the parameters of a chat answer point into */
    struct utf8_stream utf8;    /* plain ones */
    struct stop_matcher *stop;
    bool stopped; /* a stop text was found */
    struct ids ids;
    struct text text, reasoning;
    json_t *calls;
    size_t shown; /* bytes of text on standard output */
    double first, last;
};

static void show(struct answer *a) {
    if (a->args->json || a->shown >= a->text.n)
        return;
    fwrite(a->text.data + a->shown, 1, a->text.n - a->shown, stdout);
    fflush(stdout);
    a->shown = a->text.n;
}

static void add_text(struct answer *a, const char *bytes, size_t n) {
    if (!a->stopped && stop_push(a->stop, bytes, n, &a->text) >= 0)
        a->stopped = true;
}

static void on_event(void *arg, const struct chat_event *e) {
    struct answer *a = arg;
    json_t *call = json_array_get(a->calls, e->call), *function = json_object_get(call, "function");
    switch (e->kind) {
    case CHAT_REASONING: text_append(&a->reasoning, e->text, e->n); break;
    case CHAT_CONTENT: add_text(a, e->text, e->n); break;
    case CHAT_CALL_BEGIN:
        json_array_append_new(a->calls,
                              json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", e->id, "type", "function",
                                        "function", "name", e->name, "arguments", ""));
        break;
    case CHAT_CALL_ARGS: {
        const json_t *old = json_object_get(function, "arguments");
        struct text joined = {0};
        text_append(&joined, json_string_value(old), json_string_length(old));
        text_append(&joined, e->text, e->n);
        json_object_set_new(function, "arguments", json_stringn(joined.data, joined.n));
        text_free(&joined);
        break;
    }
    case CHAT_CALL_END: break;
    }
}

static bool on_tokens(void *arg, const weir_token *token, size_t n) {
    struct answer *a = arg;
    a->last = clock_seconds();
    if (a->first == 0)
        a->first = a->last;
    for (size_t i = 0; i < n && !a->stopped; i++) {
        ids_push(&a->ids, token[i].id);
        if (a->parser) {
            chat_parser_feed(a->parser, &token[i].id, 1);
        } else if (a->tokenizer && tokenizer_kind(a->tokenizer, token[i].id) != TOKEN_HIDDEN) {
            size_t bytes;
            const char *piece = tokenizer_piece(a->tokenizer, token[i].id, &bytes);
            struct text whole = {0};
            utf8_push(&a->utf8, piece, bytes, &whole);
            add_text(a, whole.data ? whole.data : "", whole.n);
            text_free(&whole);
        }
    }
    show(a);
    return !a->stopped;
}

static void finish_text(struct answer *a, bool cut) {
    struct text rest = {0};
    if (a->parser)
        chat_parser_finish(a->parser, cut);
    else
        utf8_finish(&a->utf8, &rest);
    add_text(a, rest.data ? rest.data : "", rest.n);
    if (!a->stopped)
        stop_finish(a->stop, &a->text);
    text_free(&rest);
    show(a);
}

static const char *finish_name(const struct answer *a, const weir_progress *p) {
    if (a->stopped)
        return "stop";
    switch (p->finish) {
    case WEIR_FINISH_STOP: return json_array_size(a->calls) ? "tool_calls" : "stop";
    case WEIR_FINISH_LENGTH: return "length";
    case WEIR_FINISH_ABORT: return "abort";
    case WEIR_FINISH_ERROR: return "error";
    case WEIR_RUNNING: break;
    }
    return "running";
}

struct times {
    double load, start;
};

static double rate(double tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? tokens / seconds : 0;
}

static json_t *experts_json(const weir_expert_stats *e) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "hits", (json_int_t)e->hits,
                     "misses", (json_int_t)e->misses, "evictions", (json_int_t)e->evictions,
                     "guesses", (json_int_t)e->guesses, "guesses_right",
                     (json_int_t)e->guesses_right, "ahead_reads", (json_int_t)e->ahead_reads,
                     "read_bytes", (json_int_t)e->read_bytes, "read_seconds", e->read_seconds,
                     "stall_seconds", e->stall_seconds);
}

static json_t *stats_json(const struct answer *a, const weir_progress *p, struct times t,
                          const weir_expert_stats *experts) {
    double prefill = a->first ? a->first - t.start : 0, decode = a->last - a->first;
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "prompt_tokens",
        (json_int_t)p->prompt_tokens, "cached_tokens", (json_int_t)p->cached_tokens,
        "generated_tokens", (json_int_t)p->generated_tokens, "preemptions",
        (json_int_t)p->preemptions, "load_seconds", t.load, "first_token_seconds", prefill,
        "total_seconds", a->last ? a->last - t.start : 0, "prefill_tokens_per_second",
        rate((double)(p->prompt_tokens - p->cached_tokens), prefill), "decode_tokens_per_second",
        rate((double)p->generated_tokens - 1, decode));
    if (experts->open)
        json_object_set_new(o, "expert_cache", experts_json(experts));
    return o;
}

static weir_status print_json(const struct answer *a, const struct ids *prompt,
                              const weir_progress *p, struct times t,
                              const weir_expert_stats *experts, weir_error *err) {
    json_t *o = json_object(), *prompt_ids = json_array(), *ids = json_array();
    for (size_t i = 0; i < prompt->n; i++)
        json_array_append_new(prompt_ids, json_integer(prompt->data[i]));
    for (size_t i = 0; i < a->ids.n; i++)
        json_array_append_new(ids, json_integer(a->ids.data[i]));
    json_object_set_new(o, "prompt_ids", prompt_ids);
    json_object_set_new(o, "ids", ids);
    json_object_set_new(o, "text",
                        a->tokenizer ? io_json_text(a->text.data ? a->text.data : "", a->text.n)
                                     : json_null());
    if (a->parser) {
        json_object_set_new(
            o, "reasoning_content",
            io_json_text(a->reasoning.data ? a->reasoning.data : "", a->reasoning.n));
        json_object_set(o, "tool_calls", a->calls);
    }
    json_object_set_new(o, "finish_reason", json_string(finish_name(a, p)));
    json_object_set_new(o, "stats", stats_json(a, p, t, experts));
    return io_print_json(o, err);
}

static void print_stats(const struct answer *a, const weir_progress *p, struct times t,
                        const weir_expert_stats *e) {
    double prefill = a->first ? a->first - t.start : 0;
    fprintf(stderr,
            "%u prompt %s, first token after %.3f s (%.0f tokens/s); "
            "%u generated (%.0f tokens/s); loaded in %.2f s\n",
            p->prompt_tokens, plural(p->prompt_tokens, "token", "tokens"), prefill,
            rate((double)p->prompt_tokens, prefill), p->generated_tokens,
            rate((double)p->generated_tokens - 1, a->last - a->first), t.load);
    if (e->open)
        fprintf(stderr,
                "experts: %.1f %% of %llu %s in memory, %.2f GB read at %.2f GB/s, waited "
                "%.2f s\n",
                100 * rate((double)e->hits, (double)(e->hits + e->misses)),
                (unsigned long long)(e->hits + e->misses),
                plural(e->hits + e->misses, "unit was", "units were"), (double)e->read_bytes / 1e9,
                rate((double)e->read_bytes / 1e9, e->read_seconds), e->stall_seconds);
}

/* The request of --chat with its sampling fields; options that were given win over them. */
static weir_status read_chat(const struct generate_args *args, struct local *l, struct answer *a,
                             weir_params *p, weir_error *err) {
    weir_info info;
    weir_get_info(local_engine(l), &info);
    struct api_limits limits = {.vocab = info.vocab_size,
                                .max_model_len = info.max_model_len,
                                .max_n = 1,
                                .null_column = args->engine.compute == ENGINE_COMPUTE_NULL,
                                .temperature = 1,
                                .top_p = 1,
                                .tokenizer = a->tokenizer};
    weir_status status = chat_input_read(args->chat, local_chat(l), &limits, &a->in, err);
    if (status)
        return status;
    struct api_sampling *q = &a->in.request.sampling;
    if (a->in.request.logprobs)
        return weir_fail(err, WEIR_BAD_FILE, a->in.name, "logprobs: generate prints none");
    int32_t ends[MAX_STOP_IDS];
    api_sampling_add_stops(q, ends, chat_stop_ids(local_chat(l), ends, MAX_STOP_IDS));
    *p = q->params;
    p->max_tokens = q->max_tokens_given ? q->max_tokens : 0;
    p->ignore_eos |= args->ignore_eos;
    sampling_args_override(&args->sampling, p);
    if (!sampling_args_has_stop(&args->sampling)) {
        stop_free(a->stop);
        a->stop = stop_new(q->stops, q->stop_bytes, q->n_stops, q->include_stop);
    }
    return a->stop ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, args->chat, "no memory");
}

/* The prompt's ids, and for a chat the parser of its answer. */
static weir_status prepare(const struct generate_args *args, struct local *l, const weir_error *why,
                           struct ids *prompt, struct answer *a, weir_params *p, weir_error *err) {
    if (args->prompt_ids)
        return io_parse_ids(args->prompt_ids, strlen(args->prompt_ids), local_model(l)->vocab,
                            "--prompt-ids", prompt, err);
    if (!a->tokenizer || (args->chat && !local_chat(l))) {
        *err = *why;
        if (!a->tokenizer)
            return weir_fail(err, why->code, why->where,
                             "%s; without a tokenizer a prompt is given as --prompt-ids",
                             why->message);
        return err->code;
    }
    if (args->prompt) {
        tokenizer_encode(a->tokenizer, args->prompt, strlen(args->prompt), prompt);
        return WEIR_OK;
    }
    weir_status status = read_chat(args, l, a, p, err);
    if (!status)
        status = chat_input_render(&a->in, local_chat(l), prompt, NULL, err);
    if (!status) {
        a->parser = chat_parser_new(local_chat(l), chat_input_parser(&a->in), on_event, a);
        if (!a->parser)
            status = weir_fail(err, WEIR_NO_MEMORY, args->chat, "no memory");
    }
    return status;
}

static struct stop_matcher *open_stops(const struct option_list *stop) {
    size_t *length = calloc(stop->n + 1, sizeof *length);
    for (size_t i = 0; length && i < stop->n; i++)
        length[i] = strlen(stop->item[i]);
    struct stop_matcher *m =
        length ? stop_new((const char *const *)stop->item, length, stop->n, false) : NULL;
    free(length);
    return m;
}

static weir_status check_args(const struct generate_args *a, weir_error *err) {
    int given = (a->prompt != NULL) + (a->prompt_ids != NULL) + (a->chat != NULL);
    if (given != 1)
        return weir_fail(err, WEIR_BAD_VALUE, "generate",
                         "needs one of --prompt, --prompt-ids and --chat; %s given",
                         given ? "several are" : "none is");
    for (size_t i = 0; i < a->sampling.stop.n; i++)
        if (!a->sampling.stop.item[i][0])
            return weir_fail(err, WEIR_BAD_VALUE, "--stop", "an empty text stops nothing");
    return WEIR_OK;
}

static int run_generate(void *record, weir_error *err) {
    const struct generate_args *args = record;
    if (check_args(args, err))
        return 2;
    struct local *l = NULL;
    weir_error why = {0};
    struct times t = {.start = clock_seconds()};
    if (local_open(&args->engine, &l, &why, err))
        return command_exit_status(err);
    t.load = clock_seconds() - t.start;

    struct answer a = {.args = args,
                       .tokenizer = local_tokenizer(l),
                       .calls = json_array(),
                       .stop = open_stops(&args->sampling.stop)};
    struct ids prompt = {0};
    weir_params p = sampling_args_params(&args->sampling);
    weir_progress progress = {0};
    p.ignore_eos = args->ignore_eos;
    weir_status status = a.stop && a.calls
                             ? prepare(args, l, &why, &prompt, &a, &p, err)
                             : weir_fail(err, WEIR_NO_MEMORY, "generate", "no memory");
    if (!status && prompt.n == 0)
        status = weir_fail(err, WEIR_BAD_VALUE, args->prompt ? "--prompt" : "--prompt-ids",
                           "is empty; a prompt has at least one token");
    t.start = clock_seconds();
    if (!status)
        status = local_run(l, prompt.data, prompt.n, &p, on_tokens, &a, NULL, &progress, err);
    if (!status) {
        weir_stats stats;
        weir_get_stats(local_engine(l), &stats);
        finish_text(&a, progress.finish != WEIR_FINISH_STOP);
        if (args->json)
            status = print_json(&a, &prompt, &progress, t, &stats.experts, err);
        else if (a.tokenizer)
            putchar('\n');
        else
            for (size_t i = 0; i < a.ids.n; i++)
                printf("%d%c", a.ids.data[i], i + 1 == a.ids.n ? '\n' : ' ');
        if (args->stats)
            fflush(stdout); /* else the end of the text comes behind them in a pipe */
        if (args->stats)
            print_stats(&a, &progress, t, &stats.experts);
    }
    chat_parser_free(a.parser);
    chat_input_free(&a.in);
    stop_free(a.stop);
    json_decref(a.calls);
    ids_free(&a.ids);
    ids_free(&prompt);
    text_free(&a.text);
    text_free(&a.reasoning);
    local_close(l);
    return status ? command_exit_status(err) : 0;
}

static const struct option_group generate_groups[] = {
    {"Model", &model_option, 1, AT(engine)},
    {"Prompt", prompt_options, sizeof prompt_options / sizeof prompt_options[0], 0},
    {"Sampling", sampling_options, N_SAMPLING_OPTIONS, AT(sampling), AT(sampling.given)},
    {"Output", output_options, sizeof output_options / sizeof output_options[0], 0},
    {"Engine", engine_options, N_ENGINE_OPTIONS, AT(engine)},
};

static const struct command_section generate_sections[] = {
    {"DESCRIPTION",
     "Completes one prompt and writes the text to standard output as it is generated. A checkpoint "
     "without a tokenizer takes --prompt-ids and answers with ids.\n\n"
     "With --chat the prompt is rendered with the model's chat markup; the answer's visible text "
     "is "
     "written, and with --json its reasoning and tool calls too. Sampling fields of the request "
     "(temperature, max_tokens, stop, "
     "seed ...) count as in the API; an option that is given wins over the field. stream changes "
     "nothing, since the text is streamed anyway; n above 1 and logprobs are refused."},
    {"JSON",
     "{\"prompt_ids\", \"ids\", \"text\", \"finish_reason\", \"stats\": {\"prompt_tokens\", "
     "\"cached_tokens\", \"generated_tokens\", \"preemptions\", \"load_seconds\", "
     "\"first_token_seconds\", \"total_seconds\", \"prefill_tokens_per_second\", "
     "\"decode_tokens_per_second\"}}, and for --chat \"reasoning_content\" and \"tool_calls\". "
     "With --expert-cache-bytes stats holds \"expert_cache\": {\"hits\", \"misses\", "
     "\"evictions\", \"guesses\", \"guesses_right\", \"ahead_reads\", \"read_bytes\", "
     "\"read_seconds\", \"stall_seconds\"}, counted in halves of an expert (w1 and w3; w2). "
     "finish_reason is stop, length or tool_calls. text is null without a tokenizer."},
    {"EXAMPLES",
     "  weir generate --model models/tiny-k3 --prompt 'She had been long' \\\n"
     "      --max-tokens 32 --temperature 0\n"
     "  weir generate --model models/micro-k3-odd --prompt-ids 25 --max-tokens 8 --json"},
};

const struct command command_generate = {
    .name = "generate",
    .synopsis =
        "--model DIR (--prompt TEXT | --prompt-ids 1,2,3 | --chat FILE.json) [--max-tokens N] "
        "[--temperature T] [--seed S] [--json] [ENGINE OPTIONS]",
    .summary = "complete one prompt",
    .options = {generate_groups, sizeof generate_groups / sizeof generate_groups[0], NULL, 0,
                false},
    .record_bytes = sizeof(struct generate_args),
    .section = generate_sections,
    .n_sections = sizeof generate_sections / sizeof generate_sections[0],
    .run = run_generate,
};
