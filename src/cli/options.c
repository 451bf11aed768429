/* options.c: reads option values from the command line, the environment and a configuration file by
 * one table. Called by main.c for every command. Invariant that bites: sources are applied from the
 * weakest to the strongest, so a list given on the command line must replace, not extend, the one
 * of the file. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static void *target_of(const struct option_group *g, const struct option_spec *s, void *record) {
    return (char *)record + g->offset + s->offset;
}

const struct option_spec *options_at(const struct option_table *t, size_t i,
                                     const struct option_group **group) {
    for (size_t g = 0; g < t->n; g++) {
        if (i < t->group[g].n) {
            if (group)
                *group = &t->group[g];
            return &t->group[g].option[i];
        }
        i -= t->group[g].n;
    }
    return NULL;
}

void option_env_name(const struct option_spec *s, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "WEIR_%s", s->name);
    for (size_t i = 5; i < n && i + 1 < cap; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* The index of `text` among "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text) {
    size_t n = strlen(text);
    int index = 0;
    for (const char *c = choices; *c; index++) {
        size_t len = strcspn(c, "|");
        if (len == n && !memcmp(c, text, n))
            return index;
        c += len;
        if (*c == '|')
            c++;
    }
    return -1;
}

/* "exact|fast|null" -> "exact, fast or null" */
static const char *choice_list(const char *choices, char *out, size_t cap) {
    size_t n = 0;
    for (const char *c = choices; *c && n + 1 < cap;) {
        size_t len = strcspn(c, "|");
        const char *joint = n == 0 ? "" : strchr(c, '|') ? ", " : " or ";
        n += (size_t)snprintf(out + n, cap - n, "%s%.*s", joint, (int)len, c);
        c += len + (c[len] == '|');
    }
    return out;
}

static weir_status bad_number(const struct option_spec *s, const char *text, const char *where,
                              const char *kind, weir_error *err) {
    if (isinf(s->max))
        return weir_fail(err, WEIR_BAD_VALUE, where, "'%s' is not %s of at least %.15g", text, kind,
                         s->min);
    return weir_fail(err, WEIR_BAD_VALUE, where, "'%s' is not %s from %.15g to %.15g", text, kind,
                     s->min, s->max);
}

/* Whole decimal number, optionally signed; false on anything else. */
static bool read_whole(const char *text, bool sign, uint64_t *out, bool *negative) {
    *negative = sign && *text == '-';
    if (*negative)
        text++;
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == 0;
}

static bool read_bytes(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    double v = strtod(text, &end);
    static const char *const unit[] = {"", "K", "M", "G", "T"};
    for (unsigned i = 0; i < 5; i++) {
        size_t n = strlen(unit[i]);
        if (strncasecmp(end, unit[i], n))
            continue;
        const char *rest = end + n;
        if (*rest && (i == 0 || strcasecmp(rest, "iB")) && strcasecmp(rest, "B"))
            continue;
        v = ldexp(v, (int)(10 * i));
        if (!(v < 0x1p63) || v != floor(v))
            return false;
        *out = (uint64_t)v;
        return true;
    }
    return false;
}

bool option_is_offered(const struct option_spec *s, const char *text) {
    uint64_t given, allowed;
    bool negative;
    if (!s->refusal || choice_index(s->offered, text) >= 0)
        return true;
    if (s->type == OPTION_BYTES)
        return read_bytes(text, &given) && read_bytes(s->offered, &allowed) && given == allowed;
    return s->type == OPTION_COUNT && read_whole(text, false, &given, &negative) &&
           read_whole(s->offered, false, &allowed, &negative) && given == allowed;
}

/* Would `text` be a good value, if the build offered the option? Else the plain check speaks. */
static bool is_well_formed(const struct option_spec *s, const char *text) {
    uint64_t whole;
    bool negative;
    switch (s->type) {
    case OPTION_FLAG: return choice_index("false|true", text) >= 0;
    case OPTION_CHOICE: return choice_index(s->choices, text) >= 0;
    case OPTION_COUNT: return read_whole(text, false, &whole, &negative) && whole >= s->min;
    case OPTION_BYTES: return read_bytes(text, &whole);
    case OPTION_TEXT:
    case OPTION_LIST:
    case OPTION_WIDE:
    case OPTION_INT:
    case OPTION_REAL: return true;
    }
    return true;
}

static weir_status set_list(struct option_list *list, const char *text, weir_error *err) {
    char **item = realloc(list->item, (list->n + 1) * sizeof *item);
    char *copy = strdup(text);
    if (item)
        list->item = item;
    if (!item || !copy) {
        free(copy);
        return weir_fail(err, WEIR_NO_MEMORY, "options", "no memory");
    }
    item[list->n++] = copy;
    return WEIR_OK;
}

weir_status option_set(const struct option_spec *s, void *target, const char *text,
                       const char *where, weir_error *err) {
    char names[256];
    uint64_t whole;
    bool negative;
    if (!option_is_offered(s, text) && is_well_formed(s, text))
        return weir_fail(err, WEIR_UNSUPPORTED, where, "'%s': %s", text, s->refusal);
    switch (s->type) {
    case OPTION_FLAG: {
        int i = choice_index("false|true", text);
        if (i < 0)
            return weir_fail(err, WEIR_BAD_VALUE, where, "'%s' is not true or false", text);
        *(bool *)target = i == 1;
        return WEIR_OK;
    }
    case OPTION_TEXT: {
        if (s->min > 0 && !*text)
            return weir_fail(err, WEIR_BAD_VALUE, where, "is empty; give --%s %s, or leave it out",
                             s->name, s->value);
        char *copy = strdup(text);
        if (!copy)
            return weir_fail(err, WEIR_NO_MEMORY, where, "no memory");
        free(*(char **)target);
        *(char **)target = copy;
        return WEIR_OK;
    }
    case OPTION_LIST: return set_list(target, text, err);
    case OPTION_CHOICE: {
        int i = choice_index(s->choices, text);
        if (i < 0)
            return weir_fail(err, WEIR_BAD_VALUE, where, "'%s' is not %s", text,
                             choice_list(s->choices, names, sizeof names));
        *(int *)target = i;
        return WEIR_OK;
    }
    case OPTION_COUNT:
        if (!read_whole(text, false, &whole, &negative) || (double)whole < s->min ||
            (double)whole > s->max)
            return bad_number(s, text, where, "a whole number", err);
        *(uint32_t *)target = (uint32_t)whole;
        return WEIR_OK;
    case OPTION_WIDE:
        if (!read_whole(text, false, &whole, &negative))
            return weir_fail(err, WEIR_BAD_VALUE, where,
                             "'%s' is not a whole number from 0 to 18446744073709551615", text);
        *(uint64_t *)target = whole;
        return WEIR_OK;
    case OPTION_INT:
        if (!read_whole(text, true, &whole, &negative) || whole > (uint64_t)INT64_MAX ||
            (negative ? -(double)whole : (double)whole) < s->min ||
            (negative ? -(double)whole : (double)whole) > s->max)
            return bad_number(s, text, where, "a whole number", err);
        *(int64_t *)target = negative ? -(int64_t)whole : (int64_t)whole;
        return WEIR_OK;
    case OPTION_BYTES:
        if (!read_bytes(text, &whole))
            return weir_fail(err, WEIR_BAD_VALUE, where,
                             "'%s' is not a size in bytes (such as 1073741824, 512MiB or 2G)",
                             text);
        *(uint64_t *)target = whole;
        return WEIR_OK;
    case OPTION_REAL: {
        char *end;
        double v = strtod(text, &end);
        if (end == text || *end || !(v >= s->min && v <= s->max))
            return bad_number(s, text, where, "a number", err);
        *(double *)target = v;
        return WEIR_OK;
    }
    }
    return WEIR_OK;
}

static void free_list(struct option_list *list) {
    for (size_t i = 0; i < list->n; i++)
        free(list->item[i]);
    free(list->item);
    *list = (struct option_list){0};
}

static void clear_list(const struct option_spec *s, void *target) {
    if (s->type == OPTION_LIST)
        free_list(target);
}

void options_free(const struct option_table *t, void *record) {
    const struct option_group *g;
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, &g)); i++) {
        void *target = target_of(g, s, record);
        clear_list(s, target);
        if (s->type == OPTION_TEXT) {
            free(*(char **)target);
            *(char **)target = NULL;
        }
    }
    if (t->positional && t->positional_many) {
        free_list((struct option_list *)(void *)((char *)record + t->positional_offset));
    } else if (t->positional) {
        char **p = (char **)(void *)((char *)record + t->positional_offset);
        free(*p);
        *p = NULL;
    }
}

/* Where a value came from, the weakest first. */
enum source { FROM_NONE, FROM_CONFIG, FROM_ENV, FROM_LINE };

/* One argument of the command line: which option, and its value. index SIZE_MAX: positional. */
struct argument {
    size_t index;
    const char *text, *value;
};

static size_t find_option(const struct option_table *t, const char *name, size_t n) {
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, NULL)); i++) {
        if (strlen(s->name) == n && !memcmp(s->name, name, n))
            return i;
        if (s->alias && strlen(s->alias) == n && !memcmp(s->alias, name, n))
            return i;
    }
    return SIZE_MAX;
}

size_t option_distance(const char *a, size_t na, const char *b) {
    size_t nb = strlen(b), row[64];
    if (nb >= 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const struct option_spec *options_nearest(const struct option_table *t, const char *name,
                                          size_t n) {
    const struct option_spec *s, *best = NULL;
    size_t least = n / 3 + 2;
    for (size_t i = 0; (s = options_at(t, i, NULL)); i++) {
        size_t d = option_distance(name, n, s->name);
        if (d < least) {
            least = d;
            best = s;
        }
    }
    return best;
}

static weir_status unknown_option(const struct option_table *t, const char *arg, size_t n,
                                  weir_error *err) {
    const struct option_spec *near = options_nearest(t, arg + 2, n - 2);
    char where[128];
    snprintf(where, sizeof where, "%.*s", (int)n, arg);
    if (near)
        return weir_fail(err, WEIR_BAD_VALUE, where, "unknown option; did you mean --%s?",
                         near->name);
    return weir_fail(err, WEIR_BAD_VALUE, where, "unknown option; --help lists those allowed");
}

/* Splits argv into arguments (at most argc of them). *config and *help are lifted out. */
static weir_status split(const struct option_table *t, int argc, char *const *argv,
                         struct argument *out, size_t *n_out, const char **config, bool *help,
                         weir_error *err) {
    size_t n = 0;
    bool literal = false;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (literal || a[0] != '-' || a[1] == 0) {
            out[n++] = (struct argument){SIZE_MAX, a, a};
            continue;
        }
        if (!strcmp(a, "--")) {
            literal = true;
            continue;
        }
        if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            *help = true;
            return WEIR_OK;
        }
        if (strncmp(a, "--", 2))
            return weir_fail(err, WEIR_BAD_VALUE, a,
                             "unknown option; options have two dashes, --help lists them");
        size_t len = strcspn(a, "=");
        const char *value = a[len] ? a + len + 1 : NULL;
        bool is_config = len == 8 && !memcmp(a, "--config", 8);
        size_t index = is_config ? 0 : find_option(t, a + 2, len - 2);
        if (index == SIZE_MAX)
            return unknown_option(t, a, len, err);
        const struct option_spec *s = is_config ? NULL : options_at(t, index, NULL);
        if (s && s->type == OPTION_FLAG) {
            if (!value)
                value = "true";
        } else if (!value) {
            if (i + 1 == argc)
                return weir_fail(err, WEIR_BAD_VALUE, a, "needs a value: --%s %s",
                                 s ? s->name : "config", s ? s->value : "FILE.yaml");
            value = argv[++i];
        }
        if (is_config)
            *config = value;
        else
            out[n++] = (struct argument){index, a, value};
    }
    *n_out = n;
    return WEIR_OK;
}

static weir_status apply_defaults(const struct option_table *t, void *record, weir_error *err) {
    const struct option_group *g;
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, &g)); i++)
        if (s->fallback) {
            weir_status status = option_set(s, target_of(g, s, record), s->fallback, s->name, err);
            if (status)
                return status;
        }
    return WEIR_OK;
}

static weir_status apply_config(const struct option_table *t, const char *path, void *record,
                                enum source *given, weir_error *err) {
    struct config_values values;
    weir_status status = config_read(t, path, &values, err);
    if (status)
        return status;
    const struct option_group *g;
    const struct option_spec *s;
    for (size_t i = 0; !status && (s = options_at(t, i, &g)); i++) {
        char where[512];
        snprintf(where, sizeof where, "%s: %s", path, s->name);
        for (size_t k = 0; !status && k < values.count[i]; k++)
            status = option_set(s, target_of(g, s, record), values.value[i][k], where, err);
        given[i] = values.count[i] > 0 ? FROM_CONFIG : FROM_NONE;
    }
    config_free(&values);
    return status;
}

static weir_status apply_env(const struct option_table *t, const char *(*env)(const char *name),
                             void *record, enum source *given, weir_error *err) {
    const struct option_group *g;
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, &g)); i++) {
        char name[96];
        option_env_name(s, name, sizeof name);
        const char *value = env(name);
        if (!value)
            continue;
        void *target = target_of(g, s, record);
        clear_list(s, target);
        weir_status status = option_set(s, target, value, name, err);
        if (status)
            return status;
        given[i] = FROM_ENV;
    }
    return WEIR_OK;
}

static weir_status apply_arguments(const struct option_table *t, const struct argument *arg,
                                   size_t n, void *record, enum source *given, weir_error *err) {
    void *place = (char *)record + t->positional_offset;
    char **positional = t->positional && !t->positional_many ? place : NULL;
    struct option_list *many = t->positional && t->positional_many ? place : NULL;
    for (size_t k = 0; k < n; k++) {
        if (arg[k].index == SIZE_MAX) {
            if (many) {
                weir_status status = set_list(many, arg[k].text, err);
                if (status)
                    return status;
                continue;
            }
            size_t model = find_option(t, "model", 5);
            if (!positional && model != SIZE_MAX && !given[model])
                return weir_fail(err, WEIR_BAD_VALUE, arg[k].text,
                                 "unexpected argument; a model is given as --model %s",
                                 arg[k].text);
            if (!positional)
                return weir_fail(err, WEIR_BAD_VALUE, arg[k].text,
                                 "unexpected argument; this command takes options only");
            if (*positional)
                return weir_fail(err, WEIR_BAD_VALUE, arg[k].text,
                                 "unexpected argument; %s was given as '%s' already", t->positional,
                                 *positional);
            *positional = strdup(arg[k].text);
            if (!*positional)
                return weir_fail(err, WEIR_NO_MEMORY, arg[k].text, "no memory");
            continue;
        }
        const struct option_group *g;
        const struct option_spec *s = options_at(t, arg[k].index, &g);
        void *target = target_of(g, s, record);
        bool first = true;
        for (size_t j = 0; j < k; j++)
            first = first && arg[j].index != arg[k].index;
        if (first)
            clear_list(s, target);
        char where[64];
        snprintf(where, sizeof where, "--%s", s->name);
        weir_status status = option_set(s, target, arg[k].value, where, err);
        if (status)
            return status;
        given[arg[k].index] = FROM_LINE;
    }
    if (t->positional_required && ((positional && !*positional) || (many && !many->n)))
        return weir_fail(err, WEIR_BAD_VALUE, t->positional, "is missing; --help shows the usage");
    return WEIR_OK;
}

static weir_status check_required(const struct option_table *t, const enum source *given,
                                  weir_error *err) {
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, NULL)); i++)
        if (s->required && !given[i]) {
            char where[64];
            snprintf(where, sizeof where, "--%s", s->name);
            return weir_fail(err, WEIR_BAD_VALUE, where, "is missing; give --%s %s", s->name,
                             s->value);
        }
    return WEIR_OK;
}

static void tell_given(const struct option_table *t, const enum source *given, void *record) {
    for (size_t g = 0; g < t->n; given += t->group[g++].n)
        for (size_t i = 0; t->group[g].given && i < t->group[g].n; i++)
            ((bool *)((char *)record + t->group[g].given))[i] = given[i] != FROM_NONE;
}

/* As if it had not been given. */
static weir_status take_back(const struct option_spec *s, void *target, weir_error *err) {
    clear_list(s, target);
    switch (s->type) {
    case OPTION_FLAG: *(bool *)target = false; break;
    case OPTION_TEXT:
        free(*(char **)target);
        *(char **)target = NULL;
        break;
    case OPTION_CHOICE: *(int *)target = 0; break;
    case OPTION_COUNT: *(uint32_t *)target = 0; break;
    case OPTION_INT: *(int64_t *)target = 0; break;
    case OPTION_WIDE:
    case OPTION_BYTES: *(uint64_t *)target = 0; break;
    case OPTION_REAL: *(double *)target = 0; break;
    case OPTION_LIST: break;
    }
    return s->fallback ? option_set(s, target, s->fallback, s->name, err) : WEIR_OK;
}

/* A flag that was set to false asks for nothing. */
static bool stands(const struct option_table *t, size_t i, const enum source *given, void *record) {
    const struct option_group *g;
    const struct option_spec *s = options_at(t, i, &g);
    return given[i] != FROM_NONE &&
           (s->type != OPTION_FLAG || *(const bool *)target_of(g, s, record));
}

/* Of one that was not typed. */
static void source_name(const struct option_spec *s, enum source from, char out[96]) {
    if (from == FROM_ENV)
        option_env_name(s, out, 96);
    else
        snprintf(out, 96, "%s in the file of --config", s->name);
}

/* Of the options i and k, that cannot stand beside each other. Where both were typed, the command
 * says so in its own words. */
static weir_status settle_pair(const struct option_table *t, size_t i, size_t k, enum source *given,
                               void *record, weir_error *err) {
    const struct option_group *g;
    if (!stands(t, i, given, record) || !stands(t, k, given, record))
        return WEIR_OK;
    if (given[i] == given[k]) {
        char one[96], other[96];
        if (given[i] == FROM_LINE)
            return WEIR_OK;
        source_name(options_at(t, i, NULL), given[i], one);
        source_name(options_at(t, k, NULL), given[k], other);
        return weir_fail(err, WEIR_BAD_VALUE, one, "cannot stand beside %s; give one of the two",
                         other);
    }
    size_t weak = given[i] < given[k] ? i : k;
    const struct option_spec *s = options_at(t, weak, &g);
    given[weak] = FROM_NONE;
    return take_back(s, target_of(g, s, record), err);
}

/* What is typed first, then the environment: what gives way to the one must not drive out, or be
 * refused beside, what is left for the other. */
static weir_status settle(const struct option_table *t, enum source *given, void *record,
                          weir_error *err) {
    const struct option_spec *s;
    for (int strong = FROM_LINE; strong > FROM_NONE; strong--)
        for (size_t i = 0; (s = options_at(t, i, NULL)); i++)
            for (const char *p = s->against; p && *p; p += strspn(p, " ")) {
                size_t n = strcspn(p, " "), k = find_option(t, p, n);
                WEIR_ASSERT(k != SIZE_MAX && k != i);
                bool now = (int)given[i] == strong || (int)given[k] == strong;
                weir_status status = now ? settle_pair(t, i, k, given, record, err) : WEIR_OK;
                if (status)
                    return status;
                p += n;
            }
    return WEIR_OK;
}

void options_name_variable(const struct option_table *t, int argc, char *const *argv,
                           const char *(*env)(const char *name), weir_error *err) {
    size_t n = strlen(err->where);
    size_t index = strncmp(err->where, "--", 2) ? SIZE_MAX : find_option(t, err->where + 2, n - 2);
    char name[96];
    for (int i = 0; i < argc && strcmp(argv[i], "--") && index != SIZE_MAX; i++)
        if (!strncmp(argv[i], "--", 2) &&
            find_option(t, argv[i] + 2, strcspn(argv[i] + 2, "=")) == index)
            index = SIZE_MAX;
    if (index == SIZE_MAX)
        return;
    option_env_name(options_at(t, index, NULL), name, sizeof name);
    if (env(name))
        snprintf(err->where, sizeof err->where, "%s", name);
}

weir_status options_parse(const struct option_table *t, int argc, char *const *argv,
                          const char *(*env)(const char *name), void *record, bool *help,
                          weir_error *err) {
    size_t n_options = 0, n = 0;
    while (options_at(t, n_options, NULL))
        n_options++;
    enum source *given = calloc(n_options + 1, sizeof *given);
    struct argument *arg = calloc((size_t)argc + 1, sizeof *arg);
    const char *config = NULL;
    weir_status status =
        given && arg ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, "options", "no memory");
    *help = false;
    if (!status)
        status = split(t, argc, argv, arg, &n, &config, help, err);
    if (!status && !*help) {
        if (!config)
            config = env("WEIR_CONFIG");
        status = apply_defaults(t, record, err);
        if (!status && config)
            status = apply_config(t, config, record, given, err);
        if (!status)
            status = apply_env(t, env, record, given, err);
        if (!status)
            status = apply_arguments(t, arg, n, record, given, err);
        if (!status)
            status = settle(t, given, record, err);
        if (!status)
            status = check_required(t, given, err);
        tell_given(t, given, record);
    }
    free(arg);
    free(given);
    return status;
}
