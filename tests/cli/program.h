/* program.h: runs the program as a person would and keeps what it printed. */
#ifndef WEIR_TESTS_CLI_PROGRAM_H
#define WEIR_TESTS_CLI_PROGRAM_H

#include "tests/test.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

struct outcome {
    int status; /* exit status, or 128 + signal */
    char *out, *err;
    size_t out_bytes;
};

/* `line` is cut at spaces, except inside single quotes; `@` at the start of a word stands for the
 * source tree, `%` for the scratch directory. `input` may be NULL. The outcome is valid until the
 * next call. */
const struct outcome *run(const char *input, const char *line);
/* The same, left running: its standard output goes to a file in the scratch directory. */
pid_t start(const char *line, const char *out_file);
/* With a standard input of its own: a file, or a pipe that the test writes to. */
pid_t start_with_input(const char *line, const char *in_path, const char *out_file);
/* Sends a signal (0: none) and waits for the end. */
int finish(pid_t pid, int signal);

/* run() with checks: the status, and for failures that exactly one line was printed, which begins
 * with "weir: " and holds `part`. */
void succeeds(const char *input, const char *line);
void fails(int status, const char *line, const char *part);
/* The one JSON value on standard output; owned by the caller. */
json_t *run_json(const char *input, const char *line);

const char *scratch(const char *name); /* path in the scratch directory, valid until the next call
                                        */
void write_scratch(const char *name, const void *data, size_t n);
/* Copies the plain files of a directory of the source tree. */
void copy_scratch(const char *from, const char *to);
const struct outcome *last_outcome(void);

int program_setup(void **state);
int program_teardown(void **state);

#endif
