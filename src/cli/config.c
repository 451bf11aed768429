/* config.c: reads --config FILE.yaml through a libcyaml schema that is built from the option table,
 * so that the file knows exactly the options the command line knows. Values arrive as text and pass
 * the same checks as those of the command line; libcyaml refuses unknown keys, lists where one
 * value is meant, and YAML faults, with line and column. */
#include "cli/options.h"

#include "base/file.h"

#include <cyaml/cyaml.h>
#include <stdarg.h>
#include <string.h>

/* What one key of the file fills: a text, or for lists texts and their number. */
struct slot {
    char *text;
    char **items;
    uint32_t n_items;
};

/* libcyaml reports the fault first, then a trace of where it stood, inner entries first; the
 * first line and the first place are kept. */
struct fault {
    char text[256];
    char place[64];
    char key[64]; /* whose value it is about, empty: not said */
};

static void note(cyaml_log_t level, void *ctx, const char *format, va_list args) {
    struct fault *f = ctx;
    char line[256];
    if (level < CYAML_LOG_ERROR)
        return;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = 0;
    const char *at = strstr(line, "(line: ");
    if (at) {
        unsigned row, column;
        if (!f->place[0] && sscanf(at, "(line: %u, column: %u)", &row, &column) == 2)
            snprintf(f->place, sizeof f->place, "line %u: ", row);
        const char *key = strstr(line, "in mapping field '");
        if (key && !f->key[0])
            sscanf(key, "in mapping field '%63[^']", f->key);
    } else if (!f->text[0]) {
        const char *body = strncmp(line, "Load: ", 6) ? line : line + 6;
        snprintf(f->text, sizeof f->text, "%s", body);
    }
}

/* Of an unknown or repeated key the library gives the place of the value before it: the key's own
 * line is looked up instead. */
static void place_of_key(const char *path, struct fault *f) {
    static const char unknown[] = "Unexpected key: ", again[] = "Mapping field already seen: ";
    bool is_again = !strncmp(f->text, again, sizeof again - 1);
    if (!is_again && strncmp(f->text, unknown, sizeof unknown - 1))
        return;
    const char *key = f->text + (is_again ? sizeof again : sizeof unknown) - 1;
    char *text;
    size_t n, key_bytes = strlen(key);
    if (file_read(path, 1 << 20, &text, &n, NULL))
        return;
    unsigned row = 0, wanted = is_again ? 2 : 1;
    for (const char *line = text; *line; line += line[0] == '\n') {
        row++;
        const char *p = line + strspn(line, " '\"");
        size_t len = strcspn(line, "\n");
        if (!strncmp(p, key, key_bytes) && strchr(" :'\"", p[key_bytes]) && --wanted == 0) {
            snprintf(f->place, sizeof f->place, "line %u: ", row);
            break;
        }
        line += len;
    }
    free(text);
}

/* The library speaks of its parser's events: say what the file has in their place. */
static void put_in_words(struct fault *f) {
    static const struct {
        const char *event, *words;
    } known[] = {
        {"Expecting STRING, got event: SEQUENCE_START", "is a list where one value is meant"},
        {"Expecting STRING, got event: MAPPING_START", "is a mapping where one value is meant"},
        {"Expecting SEQUENCE, got event: SCALAR", "is one value where a list is meant: [VALUE]"},
        {"Expecting SEQUENCE, got event: MAPPING_START", "is a mapping where a list is meant"},
    };
    for (size_t i = 0; f->key[0] && i < sizeof known / sizeof *known; i++)
        if (!strcmp(f->text, known[i].event))
            snprintf(f->text, sizeof f->text, "%s %s", f->key, known[i].words);
}

static const cyaml_schema_value_t text_value = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, CYAML_UNLIMITED)};

/* One field per option, pointing into an array of slots. The last field stays zero: the end mark.
 */
static cyaml_schema_field_t *build_fields(const struct option_table *t, size_t n) {
    cyaml_schema_field_t *field = calloc(n + 1, sizeof *field);
    if (!field)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const struct option_spec *s = options_at(t, i, NULL);
        cyaml_schema_field_t f = {
            .key = s->name,
            .value = {.type = CYAML_STRING,
                      .flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                      .data_size = sizeof(char),
                      .string = {.min = 0, .max = CYAML_UNLIMITED}},
            .data_offset = (uint32_t)(i * sizeof(struct slot) + offsetof(struct slot, text)),
        };
        if (s->type == OPTION_LIST) {
            f.value.type = CYAML_SEQUENCE;
            f.value.data_size = sizeof(char *);
            f.value.sequence.entry = &text_value;
            f.value.sequence.min = 0;
            f.value.sequence.max = 1024;
            f.data_offset = (uint32_t)(i * sizeof(struct slot) + offsetof(struct slot, items));
            f.count_offset = (uint32_t)(i * sizeof(struct slot) + offsetof(struct slot, n_items));
            f.count_size = sizeof(uint32_t);
        }
        memcpy(&field[i], &f, sizeof f);
    }
    return field;
}

static weir_status move_values(const struct slot *slot, size_t n, struct config_values *out,
                               weir_error *err) {
    out->value = calloc(n + 1, sizeof *out->value);
    out->count = calloc(n + 1, sizeof *out->count);
    out->n = out->value && out->count ? n : 0;
    bool ok = out->n == n;
    for (size_t i = 0; ok && i < n; i++) {
        size_t count = slot[i].items ? slot[i].n_items : slot[i].text != NULL;
        if (!count)
            continue;
        out->value[i] = calloc(count, sizeof *out->value[i]);
        ok = out->value[i] != NULL;
        for (size_t k = 0; ok && k < count; k++) {
            out->value[i][k] = strdup(slot[i].items ? slot[i].items[k] : slot[i].text);
            ok = out->value[i][k] != NULL;
            out->count[i] = k + 1;
        }
    }
    if (ok)
        return WEIR_OK;
    config_free(out);
    return weir_fail(err, WEIR_NO_MEMORY, "--config", "no memory");
}

weir_status config_read(const struct option_table *t, const char *path, struct config_values *out,
                        weir_error *err) {
    *out = (struct config_values){0};
    size_t n = 0;
    while (options_at(t, n, NULL))
        n++;
    FILE *probe = fopen(path, "r");
    if (!probe)
        return weir_fail(err, WEIR_BAD_FILE, path, "cannot be read: %m");
    fclose(probe);
    cyaml_schema_field_t *field = build_fields(t, n);
    struct slot *none = calloc(n + 1, sizeof *none); /* what an empty file says */
    if (!field || !none) {
        free(field);
        free(none);
        return weir_fail(err, WEIR_NO_MEMORY, "--config", "no memory");
    }
    const cyaml_schema_value_t top = {.type = CYAML_MAPPING,
                                      .flags = CYAML_FLAG_POINTER,
                                      .data_size = (uint32_t)((n + 1) * sizeof(struct slot)),
                                      .mapping = {.fields = field}};
    struct fault fault = {0};
    const cyaml_config_t config = {.log_fn = note,
                                   .log_ctx = &fault,
                                   .log_level = CYAML_LOG_ERROR,
                                   .mem_fn = cyaml_mem,
                                   .flags = CYAML_CFG_DEFAULT};
    cyaml_data_t *data = NULL;
    cyaml_err_t code = cyaml_load_file(path, &config, &top, &data, NULL);
    weir_status status;
    if (code) {
        place_of_key(path, &fault);
        put_in_words(&fault);
        bool unknown = !strncmp(fault.text, "Unexpected key", 14);
        status = weir_fail(err, WEIR_BAD_VALUE, path, "%s%s%s", fault.place,
                           fault.text[0] ? fault.text : cyaml_strerror(code),
                           unknown ? "; allowed are the options of --help" : "");
    } else {
        status = move_values(data ? (const struct slot *)data : none, n, out, err);
    }
    cyaml_free(&config, &top, data, 0);
    free(field);
    free(none);
    return status;
}

void config_free(struct config_values *v) {
    for (size_t i = 0; i < v->n; i++) {
        for (size_t k = 0; k < v->count[i]; k++)
            free(v->value[i][k]);
        free(v->value[i]);
    }
    free(v->value);
    free(v->count);
    *v = (struct config_values){0};
}
