/* command.h: what a command is, and the list of them. main.c looks one up; help.c prints it. */
#ifndef WEIR_CLI_COMMAND_H
#define WEIR_CLI_COMMAND_H

#include "cli/options.h"

/* A further section of the man page, in plain paragraphs separated by "\n\n". A paragraph that
 * starts with a space is shown as it stands (examples). */
struct command_section {
    const char *title;
    const char *text;
};

struct command {
    const char *name;     /* one word, or two: "bench replay" */
    const char *synopsis; /* behind `weir NAME` */
    const char *summary;  /* one line, no full stop */
    struct option_table options;
    size_t record_bytes;
    const struct command_section *section;
    size_t n_sections;
    /* `record` was filled by options_parse. Returns the exit status; WEIR_BAD_VALUE in *err ends
     * in 2, every other failure in 1, and err is printed by the caller when its code is set. */
    int (*run)(void *record, weir_error *err);
};

/* All commands, in the order of the help. */
const struct command *const *command_list(size_t *n);
/* environment.c. A line on standard error for each WEIR_NAME=... there that nothing reads. */
void environment_warn(const struct command *c, char *const *environment);
/* A dash is as good as the space between two words. */
const struct command *command_find(const char *name);
/* The command that argv (argc words) begins with, and how many words name it. NULL: none. */
const struct command *command_of(int argc, char *const *argv, int *words);
/* Do commands of two words begin with `word`? */
bool command_is_family(const char *word);
/* The name the user may have meant, or NULL. */
const char *command_nearest(const char *name);

/* Exit status of a failure: 2 for what was typed, 1 for what was read. */
int command_exit_status(const weir_error *err);

/* help.c */
void help_print_all(FILE *out);
void help_print_family(FILE *out, const char *word);
void help_print_command(FILE *out, const struct command *c);
/* The man page of a command in mdoc, or of the program as a whole (NULL). */
void help_print_man(FILE *out, const struct command *c);

extern const struct command command_serve, command_generate, command_score, command_tokenize,
    command_render, command_chat, command_inspect, command_synth, command_help, command_version;
extern const struct command command_bench_inspect, command_bench_compare, command_bench_gate,
    command_bench_history, command_bench_kernels, command_bench_replay, command_bench_sweep,
    command_bench_step, command_bench_threads;
extern const struct command command_cost, command_frontier, command_plan_kernels, command_report,
    command_tune;

#endif
