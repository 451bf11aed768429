/* kernels_idle.c: see kernels_idle.h. Called by kernels.c.
 * Invariant that bites: /proc/stat counts in ticks of 10 ms; over less than a fifth of a second a
 * share means nothing. */
#include "bench/kernels_idle.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

struct idle_mark idle_mark(void) {
    struct idle_mark m = {.seconds = clock_seconds()};
    FILE *f = fopen("/proc/stat", "re");
    uint64_t t[8] = {0}; /* user nice system idle iowait irq softirq steal */
    if (f) {
        m.known = fscanf(f,
                         "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                         " %" SCNu64 " %" SCNu64,
                         &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) == 8;
        fclose(f);
    }
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    m.busy = (double)(t[0] + t[1] + t[2] + t[5] + t[6]) * tick;
    m.stolen = (double)t[7] * tick;
    struct timespec own;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) == 0)
        m.own = (double)own.tv_sec + (double)own.tv_nsec * 1e-9;
    return m;
}

struct idle_share idle_between(const struct idle_mark *from, const struct idle_mark *to) {
    double seconds = to->seconds - from->seconds;
    if (!from->known || !to->known || seconds <= 0)
        return (struct idle_share){0};
    double others = (to->busy - from->busy) - (to->own - from->own);
    return (struct idle_share){.known = true,
                               .others = others > 0 ? others / seconds : 0,
                               .stolen = (to->stolen - from->stolen) / seconds,
                               .seconds = seconds};
}

struct idle_share idle_probe(double seconds) {
    struct idle_mark from = idle_mark();
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
    struct idle_mark to = idle_mark();
    return idle_between(&from, &to);
}

bool idle_wait(double seconds) {
    double end = clock_seconds() + seconds;
    while (clock_seconds() < end) {
        struct idle_share s = idle_probe(0.5);
        if (idle_is_quiet(&s))
            return true;
    }
    return false;
}

bool idle_is_quiet(const struct idle_share *s) {
    /* One tick of error at either end. */
    double error = s->seconds > 0 ? 0.02 / s->seconds : 0;
    return !s->known || (s->others <= 0.05 + error && s->stolen <= 0.02 + error);
}
