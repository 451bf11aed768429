/* progress.h: a bar on standard error for long work. It is drawn only on a terminal and at most ten
 * times a second, and leaves no trace when done. */
#ifndef WEIR_CLI_PROGRESS_H
#define WEIR_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what;
    uint64_t total, done; /* total 0: unknown, a note instead of a bar */
    double started, drawn;
    bool on;
};

/* `what` must outlive the bar. */
void progress_begin(struct progress *p, const char *what, uint64_t total);
void progress_to(struct progress *p, uint64_t done);
void progress_end(struct progress *p);

#endif
