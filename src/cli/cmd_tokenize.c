/* cmd_tokenize.c: `weir tokenize`: standard input to ids, or ids back to text. */
#include "cli/command.h"
#include "cli/engine_args.h"
#include "cli/io.h"
#include "model/model.h"

struct tokenize_args {
    struct engine_args engine; /* its model alone */
    bool decode, special, json;
};

#define AT(field) offsetof(struct tokenize_args, field)

enum { INPUT_LIMIT = 1 << 30 };

static const struct option_spec tokenize_options[] = {
    {.name = "decode",
     .type = OPTION_FLAG,
     .offset = AT(decode),
     .help = "Read ids, separated by blanks or commas, and write the bytes they stand for."},
    {.name = "special",
     .type = OPTION_FLAG,
     .offset = AT(special),
     .help = "Turn the spellings of special tokens into their ids. Without it they are ordinary "
             "text."},
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object."},
};

static weir_status decode(const struct tokenizer *t, const struct tokenize_args *a,
                          const char *input, size_t n, weir_error *err) {
    struct ids ids = {0};
    struct text text = {0};
    weir_status status = io_parse_ids(input, n, tokenizer_vocab(t), "standard input", &ids, err);
    if (!status) {
        tokenizer_decode(t, ids.data, ids.n, false, &text);
        if (a->json)
            status = io_print_json(json_pack("{s:o, s:I}", "text",
                                             io_json_text(text.data ? text.data : "", text.n),
                                             "count", (json_int_t)ids.n),
                                   err);
        else
            fwrite(text.data, 1, text.n, stdout);
    }
    ids_free(&ids);
    text_free(&text);
    return status;
}

static void encode(const struct tokenizer *t, const struct tokenize_args *a, const char *input,
                   size_t n) {
    struct ids ids = {0};
    if (a->special)
        tokenizer_encode_special(t, input, n, &ids);
    else
        tokenizer_encode(t, input, n, &ids);
    if (a->json) {
        fputs("{\"ids\":", stdout);
        io_print_ids(ids.data, ids.n);
        printf(",\"count\":%zu}\n", ids.n);
    } else {
        for (size_t i = 0; i < ids.n; i++)
            printf(i ? " %d" : "%d", ids.data[i]);
        putchar('\n');
    }
    ids_free(&ids);
}

static int run_tokenize(void *record, weir_error *err) {
    const struct tokenize_args *a = record;
    struct model m;
    struct tokenizer *t = NULL;
    char *input = NULL;
    size_t n;
    weir_status status = model_open(a->engine.model, &m, err);
    if (!status)
        status = tokenizer_open(a->engine.model, m.vocab, &t, err);
    if (!status)
        status = io_read_input(INPUT_LIMIT, &input, &n, err);
    if (!status) {
        if (a->decode)
            status = decode(t, a, input, n, err);
        else
            encode(t, a, input, n);
    }
    free(input);
    tokenizer_close(t);
    /* Ids come from a file or a pipe: they are input, not options. */
    return status ? 1 : 0;
}

static const struct option_group tokenize_groups[] = {
    {"Model", &model_option, 1, AT(engine)},
    {"Options", tokenize_options, sizeof tokenize_options / sizeof tokenize_options[0], 0},
};

static const struct command_section tokenize_sections[] = {
    {"DESCRIPTION",
     "Turns the text on standard input into token ids on one line, or with --decode ids into text. "
     "Text is taken as it is: nothing is added in front or behind, and bytes that are not UTF-8 "
     "become U+FFFD. Decoded text is written byte for byte without a line break behind it."},
    {"JSON", "{\"ids\": [...], \"count\"}; with --decode {\"text\", \"count\"}, where bytes that "
             "are not UTF-8 become U+FFFD."},
    {"EXAMPLES", "  printf 'She had been long' | weir tokenize --model models/tiny-k3\n"
                 "  echo 50,257,582,702,935 | weir tokenize --model models/tiny-k3 --decode"},
};

const struct command command_tokenize = {
    .name = "tokenize",
    .synopsis = "--model DIR [--decode] [--json]",
    .summary = "turn text into token ids, and ids into text",
    .options = {tokenize_groups, 2, NULL, 0, false},
    .record_bytes = sizeof(struct tokenize_args),
    .section = tokenize_sections,
    .n_sections = sizeof tokenize_sections / sizeof tokenize_sections[0],
    .run = run_tokenize,
};
