/* cmd_render.c: `weir render`: a chat request on standard input to the exact prompt. */
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/engine_args.h"
#include "cli/io.h"
#include "model/model.h"

struct render_args {
    struct engine_args engine; /* its model alone */
    bool json;
};

#define AT(field) offsetof(struct render_args, field)

static const struct option_spec render_options[] = {
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = AT(json),
     .help = "Print one JSON object with the ids and the text."},
};

static weir_status render(const struct chat *c, bool json, weir_error *err) {
    struct chat_input in;
    weir_status status = chat_input_read("-", c, NULL, &in, err);
    if (status)
        return status;
    struct ids ids = {0};
    struct text text = {0};
    status = chat_input_render(&in, c, &ids, &text, err);
    if (!status && json) {
        json_t *o = json_object(), *list = json_array();
        for (size_t i = 0; i < ids.n; i++)
            json_array_append_new(list, json_integer(ids.data[i]));
        json_object_set_new(o, "ids", list);
        json_object_set_new(o, "text", io_json_text(text.data ? text.data : "", text.n));
        json_object_set_new(o, "count", json_integer((json_int_t)ids.n));
        status = io_print_json(o, err);
    } else if (!status) {
        fwrite(text.data, 1, text.n, stdout);
        putchar('\n');
    }
    ids_free(&ids);
    text_free(&text);
    chat_input_free(&in);
    return status;
}

static int run_render(void *record, weir_error *err) {
    const struct render_args *a = record;
    struct model m;
    struct tokenizer *t = NULL;
    struct chat *c = NULL;
    weir_status status = model_open(a->engine.model, &m, err);
    if (!status)
        status = tokenizer_open(a->engine.model, m.vocab, &t, err);
    if (!status)
        status = chat_open(m.family == FAMILY_KIMI_LINEAR ? CHAT_KIMI_LINEAR : CHAT_K3, t, &c, err);
    if (!status)
        status = render(c, a->json, err);
    chat_close(c);
    tokenizer_close(t);
    return status ? command_exit_status(err) : 0;
}

static const struct option_group render_groups[] = {
    {"Model", &model_option, 1, AT(engine)},
    {"Options", render_options, 1, 0},
};

static const struct command_section render_sections[] = {
    {"DESCRIPTION",
     "Reads a chat request as sent to /v1/chat/completions (or an array of messages) from standard "
     "input and prints the prompt the model would see, markers spelled out. Fields that do not "
     "change the prompt are not looked at."},
    {"JSON", "{\"ids\": [...], \"text\", \"count\"}."},
    {"EXAMPLES", "  echo '[{\"role\":\"user\",\"content\":\"Hello!\"}]' |\n"
                 "      weir render --model models/tiny-k3 --json"},
};

const struct command command_render = {
    .name = "render",
    .synopsis = "--model DIR [--json]",
    .summary = "turn a chat request into the exact prompt",
    .options = {render_groups, 2, NULL, 0, false},
    .record_bytes = sizeof(struct render_args),
    .section = render_sections,
    .n_sections = sizeof render_sections / sizeof render_sections[0],
    .run = run_render,
};
