/* command.c: the list of commands. */
#include "cli/command.h"

#include <string.h>

static const struct command *const commands[] = {
    &command_serve,   &command_generate, &command_chat,  &command_tokenize, &command_render,
    &command_inspect, &command_score,    &command_synth, &command_help,     &command_version,
};

const struct command *const *command_list(size_t *n) {
    *n = sizeof commands / sizeof commands[0];
    return commands;
}

const struct command *command_find(const char *name) {
    size_t n;
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i]->name, name))
            return list[i];
    return NULL;
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
