/* bench_progress.c: what is said of a replay while it goes on, on standard error. Called by
 * bench_job.c. */
#include "cli/bench_args.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define LINE_EVERY 60.0 /* seconds of profiling, where there is no terminal */

/* A bar where the end is known. */
static void draw_bar(const struct replay_progress *p, char *out, size_t cap) {
    enum { CELLS = 16 };
    char cells[CELLS + 1] = "";
    double part = p->seconds / (p->seconds + p->left);
    for (int i = 0; i < CELLS; i++)
        cells[i] = i < (int)(part * CELLS) ? '#' : '.';
    snprintf(out, cap, " [%s] %.0f s left", cells, p->left);
}

static void say(const struct replay_progress *p, const char *before, const char *bar,
                const char *after) {
    fprintf(stderr,
            "%s%s%s: %u alive, %u in flight, %" PRIu64 " done, %" PRIu64 " failed, %.0f tokens/s%s",
            before, phase_name(p->phase), bar, p->alive, p->in_flight, p->done, p->failed,
            p->tokens_per_second, after);
    fflush(stderr);
}

static void show_bar(const struct replay_progress *p) {
    char bar[64] = "";
    if (isfinite(p->left) && p->seconds + p->left > 0)
        draw_bar(p, bar, sizeof bar);
    say(p, "\r", bar, "\x1b[K");
}

/* Each phase once, and then from time to time: a log does not grow by ten lines a second. */
static void show_line(struct bench_progress *b, const struct replay_progress *p) {
    char head[320], since[48] = "";
    if ((int)p->phase == b->phase && !(p->seconds >= b->next))
        return;
    if (p->seconds > 0)
        snprintf(since, sizeof since, " for %.0f s", p->seconds);
    snprintf(head, sizeof head, "%s on %s: ", p->model[0] ? p->model : "a model", p->server);
    /* The name is the server's, and may hold what drives a terminal. */
    for (unsigned char *c = (unsigned char *)head; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
    say(p, head, since, "\n");
    b->phase = (int)p->phase;
    b->next = p->seconds + LINE_EVERY;
}

static void show(void *user, const struct replay_progress *p) {
    struct bench_progress *b = user;
    if (b->bar)
        show_bar(p);
    else
        show_line(b, p);
}

void bench_progress_begin(struct bench_progress *p, struct replay_options *o) {
    const char *term = getenv("TERM");
    bool bar = isatty(STDERR_FILENO) && term && strcmp(term, "dumb");
    *p = (struct bench_progress){.bar = bar, .phase = -1, .next = LINE_EVERY};
    o->progress = show;
    o->progress_user = p;
}

void bench_progress_end(const struct bench_progress *p) {
    if (p->bar)
        fputs("\r\x1b[K", stderr);
}
