/* main.c: finds the command, has its options read, runs it, and turns a failure into one line and
 * an exit status. */
#include "cli/command.h"
#include "cli/version.h"

#include <string.h>

extern char **environ;

static const char *look_up(const char *name) {
    return getenv(name);
}

/* The library names its own fields (max_model_len); who typed an option reads its name. */
static void name_option(const struct option_table *t, weir_error *err) {
    const struct option_spec *s;
    for (size_t i = 0; (s = options_at(t, i, NULL)); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", s->name);
        for (char *p = name; *p; p++)
            if (*p == '-')
                *p = '_';
        if (!strcmp(name, err->where)) {
            snprintf(err->where, sizeof err->where, "--%s", s->name);
            return;
        }
    }
}

static int fail(const weir_error *err, int status) {
    fprintf(stderr, "weir: %s: %s\n", err->where, err->message);
    return status;
}

static int run_command(const struct command *c, int argc, char **argv) {
    weir_error err = {0};
    bool help = false;
    void *record = calloc(1, c->record_bytes ? c->record_bytes : 1);
    if (!record) {
        fputs("weir: no memory\n", stderr);
        return 1;
    }
    int status;
    environment_warn(c, environ);
    if (options_parse(&c->options, argc, argv, look_up, record, &help, &err)) {
        /* A known value that this build does not offer is as much a matter of what was typed. */
        status = fail(&err, err.code == WEIR_UNSUPPORTED ? 2 : command_exit_status(&err));
    } else if (help) {
        help_print_command(stdout, c);
        status = 0;
    } else {
        status = c->run(record, &err);
        if (err.code) {
            name_option(&c->options, &err);
            options_name_variable(&c->options, argc, argv, look_up, &err);
        }
        if (err.code)
            status = fail(&err, status);
    }
    options_free(&c->options, record);
    free(record);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "weir: standard output: %m\n");
        return status ? status : 1;
    }
    return status;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        help_print_all(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help_print_all(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("weir " WEIR_VERSION);
        return 0;
    }
    int words;
    char name[64];
    const struct command *c = command_of(argc - 1, argv + 1, &words);
    if (c == &command_help && argc > 3) {
        /* The name of the command that help is wanted of may be two words. */
        const struct command *of = command_of(argc - 2, argv + 2, &words);
        if (of && words == 2) {
            snprintf(name, sizeof name, "%s", of->name);
            argv[3] = name;
            argv[2] = argv[1];
            argv++, argc--;
        }
        words = 1;
    }
    if (!c && command_is_family(argv[1])) {
        bool asked = argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"));
        if (argc > 2 && !asked)
            fprintf(stderr, "weir: %s %s: unknown command\n", argv[1], argv[2]);
        help_print_family(asked ? stdout : stderr, argv[1]);
        return asked ? 0 : 2;
    }
    const char *near = c ? NULL : command_nearest(argv[1]);
    if (near) {
        fprintf(stderr, "weir: %s: unknown command; did you mean %s?\n", argv[1], near);
        return 2;
    }
    if (!c) {
        fprintf(stderr, "weir: %s: unknown command; `weir help` lists those there are\n", argv[1]);
        return 2;
    }
    return run_command(c, argc - 1 - words, argv + 1 + words);
}
