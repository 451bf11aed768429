/* environment.c: looks over the environment for names that nothing reads. Called by main.c for
 * every command, before its options are read: a misspelt WEIR_MODEL is why --model is missing. */
#include "cli/command.h"

#include <string.h>

enum { NAME_BYTES = 96 };

/* Read elsewhere than in the option table. */
static bool is_read(const char *name) {
    static const char *const others[] = {"WEIR_CONFIG", "WEIR_CPU", "WEIR_LIBCURL"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return true;
    /* Kubernetes sets these in every pod beside a service that is called weir. */
    return !strncmp(name, "WEIR_SERVICE_", 13) || !strncmp(name, "WEIR_PORT_", 10);
}

/* "WEIR_MAX_MODEL_LEN" -> "max-model-len" */
static void as_option(const char *name, char out[NAME_BYTES]) {
    snprintf(out, NAME_BYTES, "%s", name + 5);
    for (char *p = out; *p; p++)
        *p = *p == '_' ? '-' : *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
}

static const struct option_spec *find_in(const struct command *c, const char *name, bool alias) {
    const struct option_spec *s;
    for (size_t k = 0; (s = options_at(&c->options, k, NULL)); k++)
        if (alias ? s->alias && !strcmp(name, s->alias) : !strcmp(name, s->name))
            return s;
    return NULL;
}

/* Of any command. */
static const struct option_spec *find(const char *name, bool alias) {
    size_t n;
    const struct command *const *list = command_list(&n);
    const struct option_spec *s = NULL;
    for (size_t i = 0; !s && i < n; i++)
        s = find_in(list[i], name, alias);
    return s;
}

/* What may have been meant: an option of the command itself before those of others. */
static const struct option_spec *meant(const struct command *c, const char *name) {
    size_t n;
    const struct command *const *list = command_list(&n);
    const struct option_spec *s = find(name, true);
    if (!s)
        s = options_nearest(&c->options, name, strlen(name));
    for (size_t i = 0; !s && i < n; i++)
        s = options_nearest(&list[i]->options, name, strlen(name));
    return s;
}

/* The variable that the option of this name is read from. A short name is none, even where another
 * command has an option of that name. */
static const struct option_spec *read_as(const struct command *c, const char *option) {
    const struct option_spec *s = find_in(c, option, false);
    return s || find_in(c, option, true) ? s : find(option, false);
}

void environment_warn(const struct command *c, char *const *environment) {
    for (char *const *e = environment; *e; e++) {
        char name[NAME_BYTES], option[NAME_BYTES], near[NAME_BYTES];
        size_t bytes = strcspn(*e, "=");
        if (strncmp(*e, "WEIR_", 5) || bytes >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *e);
        as_option(name, option);
        const struct option_spec *s = read_as(c, option);
        if (s) /* only in capitals is it read */
            option_env_name(s, near, sizeof near);
        if (is_read(name) || (s && !strcmp(near, name)))
            continue;
        s = s ? s : meant(c, option);
        if (s)
            option_env_name(s, near, sizeof near);
        fprintf(stderr, "weir: warning: %s in the environment is no option%s%s%s\n", name,
                s ? "; did you mean " : " of any command", s ? near : "", s ? "?" : "");
    }
}
