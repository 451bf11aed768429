/* progress.c: draws the bar. Called by commands that load, synthesise or score. Invariant that
 * bites: nothing may reach standard output, which belongs to results. */
#include "cli/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_MAX = 40 };

static void draw(const struct progress *p, double now) {
    double part = (double)p->done / (double)p->total, spent = now - p->started;
    struct winsize w = {0};
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    int cells = columns - (int)strlen(p->what) - 28;
    cells = cells > BAR_MAX ? BAR_MAX : cells < 4 ? 4 : cells;
    char bar[BAR_MAX + 1];
    int full = (int)(part * cells);
    for (int i = 0; i < cells; i++)
        bar[i] = i < full ? '#' : '.';
    bar[cells] = 0;
    fprintf(stderr, "\r%s [%s] %3d %%", p->what, bar, (int)(part * 100));
    if (part > 0.01 && spent > 1)
        fprintf(stderr, "  %.0f s left", spent / part - spent);
    fputs("\x1b[K", stderr);
    fflush(stderr);
}

void progress_begin(struct progress *p, const char *what, uint64_t total) {
    const char *term = getenv("TERM");
    *p = (struct progress){.what = what, .total = total, .started = clock_seconds()};
    p->on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb");
    if (p->on && !total) {
        fprintf(stderr, "%s ...", what);
        fflush(stderr);
    }
}

void progress_to(struct progress *p, uint64_t done) {
    p->done = done < p->total ? done : p->total;
    double now = clock_seconds();
    if (!p->on || !p->total || now - p->drawn < 0.1)
        return;
    p->drawn = now;
    draw(p, now);
}

void progress_end(struct progress *p) {
    if (p->on) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
    p->on = false;
}
