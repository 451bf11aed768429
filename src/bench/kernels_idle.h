/* kernels_idle.h: was the machine ours? Processor time that others took, from /proc/stat, between
 * two moments. */
#ifndef WEIR_BENCH_KERNELS_IDLE_H
#define WEIR_BENCH_KERNELS_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* Counters at one moment. */
struct idle_mark {
    bool known;
    double seconds;      /* monotonic */
    double busy, stolen; /* processor seconds of all cores since boot; stolen: by a hypervisor */
    double own;          /* of this process */
};
/* Cores (of all that there are) that others kept busy, and that the hypervisor withheld, on average
 * between two marks. */
struct idle_share {
    bool known;
    double others, stolen; /* cores */
    double seconds;
};

struct idle_mark idle_mark(void);
struct idle_share idle_between(const struct idle_mark *from, const struct idle_mark *to);
/* Sleeps for `seconds` and says what others did meanwhile. */
struct idle_share idle_probe(double seconds);

/* Waits until nobody else has used the processor for half a second, at most `seconds`. Returns
 * whether that came. */
bool idle_wait(double seconds);

/* More than a twentieth of a core taken by others, or a fiftieth withheld, makes numbers of all
 * cores worthless: a barrier waits for the slowest. */
bool idle_is_quiet(const struct idle_share *s);

#endif
