/* command.c: the list of commands. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

static const struct command *const commands[] = {
    /* clang-format off: one a line */
    &command_serve,         &command_generate,      &command_chat,          &command_tokenize,
    &command_render,        &command_inspect,       &command_score,         &command_synth,
    &command_help,          &command_version,       &command_bench_compare, &command_bench_gate,
    &command_bench_history, &command_bench_inspect, &command_bench_kernels, &command_bench_replay,
    &command_bench_step,    &command_bench_sweep,   &command_bench_threads, &command_cost,
    &command_frontier,      &command_plan_kernels,  &command_report,        &command_tune,
    /* clang-format on */
};

const struct command *const *command_list(size_t *n) {
    *n = sizeof commands / sizeof commands[0];
    return commands;
}

const struct command *command_find(const char *name) {
    size_t n;
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++) {
        const char *a = list[i]->name, *b = name;
        while (*a && (*a == *b || (*a == ' ' && *b == '-')))
            a++, b++;
        if (!*a && !*b)
            return list[i];
    }
    return NULL;
}

const struct command *command_of(int argc, char *const *argv, int *words) {
    char both[128];
    for (*words = argc < 2 ? argc : 2; *words > 0; (*words)--) {
        if (*words == 2)
            snprintf(both, sizeof both, "%s %s", argv[0], argv[1]);
        const struct command *c = command_find(*words == 2 ? both : argv[0]);
        if (c)
            return c;
    }
    return NULL;
}

bool command_is_family(const char *word) {
    size_t n, len = strlen(word);
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++)
        if (!strncmp(list[i]->name, word, len) && list[i]->name[len] == ' ')
            return true;
    return false;
}

const char *command_nearest(const char *name) {
    size_t n, least = strlen(name) / 3 + 2;
    const struct command *const *list = command_list(&n);
    const char *best = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = option_distance(name, strlen(name), list[i]->name);
        if (d < least) {
            least = d;
            best = list[i]->name;
        }
    }
    return best;
}

int command_exit_status(const weir_error *err) {
    switch (err->code) {
    case WEIR_OK: return 0;
    case WEIR_BAD_VALUE: return 2;
    case WEIR_UNSUPPORTED:
    case WEIR_BAD_FILE:
    case WEIR_BAD_ID:
    case WEIR_TOO_LONG:
    case WEIR_BUSY:
    case WEIR_CLOSED:
    case WEIR_NO_MEMORY:
    case WEIR_NO_TOKEN: return 1;
    }
    return 1;
}
