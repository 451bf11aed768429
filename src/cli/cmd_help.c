/* cmd_help.c: `weir help [COMMAND]` and `weir version`. The build asks the same command for the man
 * pages (--man). */
#include "cli/command.h"
#include "cli/version.h"

#include <string.h>

struct help_args {
    char *command;
    bool man;
};

static const struct option_spec help_options[] = {
    {.name = "man",
     .type = OPTION_FLAG,
     .offset = offsetof(struct help_args, man),
     .help = "Print the manual page as roff text. Without a command: that of weir itself."},
};
static const struct option_group help_groups[] = {{"Options", help_options, 1, 0}};

static int run_help(void *record, weir_error *err) {
    const struct help_args *a = record;
    const struct command *c = a->command ? command_find(a->command) : NULL;
    if (a->command && !c && !a->man && command_is_family(a->command)) {
        help_print_family(stdout, a->command);
        return 0;
    }
    if (a->command && !c) {
        weir_fail(err, WEIR_BAD_VALUE, a->command,
                  "unknown command; `weir help` lists those there are");
        return 2;
    }
    if (a->man)
        help_print_man(stdout, c);
    else if (c)
        help_print_command(stdout, c);
    else
        help_print_all(stdout);
    return 0;
}

static const struct command_section help_sections[] = {
    {"DESCRIPTION", "Lists the commands, or the options of one command."},
};

const struct command command_help = {
    .name = "help",
    .synopsis = "[COMMAND] [--man]",
    .summary = "list the commands, or the options of one",
    .options = {help_groups, 1, "COMMAND", offsetof(struct help_args, command), false},
    .record_bytes = sizeof(struct help_args),
    .section = help_sections,
    .n_sections = 1,
    .run = run_help,
};

struct version_args {
    bool json;
};

static const struct option_spec version_options[] = {
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct version_args, json),
     .help = "Print one JSON object."},
};
static const struct option_group version_groups[] = {{"Options", version_options, 1, 0}};

static int run_version(void *record, weir_error *err) {
    const struct version_args *a = record;
    puts(a->json ? "{\"version\":\"" WEIR_VERSION "\"}" : "weir " WEIR_VERSION);
    return 0;
}

static const struct command_section version_sections[] = {
    {"DESCRIPTION", "Prints the version of the program. With --json: {\"version\"}."},
};

const struct command command_version = {
    .name = "version",
    .synopsis = "[--json]",
    .summary = "print the version",
    .options = {version_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct version_args),
    .section = version_sections,
    .n_sections = 1,
    .run = run_version,
};
