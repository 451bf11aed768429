/* options.h: one table per command says everything about its options. Parsing the command line, the
 * environment (WEIR_NAME_OF_OPTION) and --config FILE.yaml, --help and the man pages all read it.
 *
 * Precedence: command line, environment, configuration file, the default of the table. Every value,
 * wherever it came from, passes the same check. */
#ifndef WEIR_CLI_OPTIONS_H
#define WEIR_CLI_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_type {
    OPTION_FLAG,   /* bool; no value on the command line, true or false elsewhere */
    OPTION_TEXT,   /* char * */
    OPTION_CHOICE, /* int: the index of the value in `choices` */
    OPTION_COUNT,  /* uint32_t */
    OPTION_WIDE,   /* uint64_t */
    OPTION_INT,    /* int64_t */
    OPTION_BYTES,  /* uint64_t; suffixes K M G T and KiB MiB GiB TiB are powers of 1024 */
    OPTION_REAL,   /* double */
    OPTION_LIST,   /* struct option_list; may be given several times */
};

struct option_list {
    char **item;
    size_t n;
};

struct option_spec {
    const char *name;  /* without the dashes */
    const char *alias; /* a second, short name, or NULL */
    const char *value; /* placeholder in the help; NULL for flags */
    enum option_type type;
    size_t offset;        /* of the target within the group's record */
    const char *choices;  /* "exact|fast|null" */
    double min, max;      /* of numbers, inclusive; a text with min 1 must not be empty */
    const char *fallback; /* default, as one would type it; NULL: none, and 0 stays */
    bool required;
    /* A known option of which this build offers only the values named here ("1", "cpu"; "" for
     * none): any other is refused by this sentence instead of as a bad value. */
    const char *offered, *refusal;
    /* Names, with spaces between, of options that cannot stand beside this one. Of two such from
     * different sources that of the stronger one counts; two that both come from the environment
     * or both from the file are refused, and two that were typed are left to the command. */
    const char *against;
    const char *help; /* one or two sentences */
};

struct option_group {
    const char *title;
    const struct option_spec *option;
    size_t n;
    size_t offset; /* of the group's record within the command's */
    size_t given;  /* of n bools there: which options any source gave; 0: nobody asks */
};

struct option_table {
    const struct option_group *group;
    size_t n;
    const char *positional;   /* placeholder of the one positional argument, or NULL for none */
    size_t positional_offset; /* of a char *, or with positional_many of a struct option_list */
    bool positional_required;
    bool positional_many;
};

/* Fills the zeroed `record`. argv holds the arguments behind the command's name. `env` looks a
 * variable up (getenv). Sets *help when --help was asked for; nothing else is checked then.
 * WEIR_BAD_VALUE (or WEIR_UNSUPPORTED for refused values, WEIR_BAD_FILE for the configuration
 * file): err->where names the option as it was given, the message what is allowed. */
weir_status options_parse(const struct option_table *t, int argc, char *const *argv,
                          const char *(*env)(const char *name), void *record, bool *help,
                          weir_error *err);
/* Puts a variable's name into err->where in place of "--NAME", where that option was not typed but
 * read from the environment: a line may not blame what nobody typed. */
void options_name_variable(const struct option_table *t, int argc, char *const *argv,
                           const char *(*env)(const char *name), weir_error *err);
/* Frees texts and lists. */
void options_free(const struct option_table *t, void *record);

/* Every option of the table in order, --config and --help not included. NULL at the end. */
const struct option_spec *options_at(const struct option_table *t, size_t i,
                                     const struct option_group **group);

/* Sets one option from text; `where` names the source in errors. Used by the readers of the three
 * sources. */
weir_status option_set(const struct option_spec *s, void *target, const char *text,
                       const char *where, weir_error *err);

/* Is `text` one of the values this build offers of a known option? Numbers compare as numbers. */
bool option_is_offered(const struct option_spec *s, const char *text);

/* The option that `name` (n letters of it) is nearest to, if near enough; or NULL. */
const struct option_spec *options_nearest(const struct option_table *t, const char *name, size_t n);

/* How many letters of `a` (na of them) must change to make `b`. */
size_t option_distance(const char *a, size_t na, const char *b);

/* "WEIR_MAX_MODEL_LEN" */
void option_env_name(const struct option_spec *s, char *out, size_t cap);

/* config.c: one value per option of the table (NULL: not given; lists: several), read from a YAML
 * file. */
struct config_values {
    char ***value; /* [options][count] */
    size_t *count;
    size_t n;
};
weir_status config_read(const struct option_table *t, const char *path, struct config_values *out,
                        weir_error *err);
void config_free(struct config_values *v);

#endif
