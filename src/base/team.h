/* team.h: the thread team that runs a step. The caller is member 0; members 1..n-1 are threads that
 * wait, spinning briefly and then parked in the kernel, because a spinning team on a shared core
 * collapses by 10 to 100 times when a neighbour takes it. */
#ifndef WEIR_BASE_TEAM_H
#define WEIR_BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

struct team;

/* `threads` >= 1 members. NULL without memory or threads. */
struct team *team_open(uint32_t threads);
void team_close(struct team *t);
uint32_t team_threads(const struct team *t);
/* Runs fn(arg, member) on every member and returns when all have. One caller at a time. */
void team_run(struct team *t, void (*fn)(void *arg, uint32_t member), void *arg);
/* The same on as many members as the machine has cores for at present: fn is called on members
 * 0..n-1, n = team_present, and must share its work out among those. While a neighbour keeps a core
 * busy, the team leaves it to him and is one smaller: two that take turns on one core would be no
 * faster than one, and slower by every meeting. From time to time it tries again with one more. */
void team_run_present(struct team *t, void (*fn)(void *arg, uint32_t member), void *arg);
/* Inside fn: members of this run. */
uint32_t team_present(const struct team *t);
/* Inside fn: returns when every member has come; orders memory. */
void team_barrier(struct team *t, uint32_t member);

/* Inside fn, between two barriers: hands out the range [0, units), each unit to exactly one member,
 * in pieces. Every member calls it with the same `units` until it returns false, *visited being 0
 * before its first call. A member first gets three quarters of a fair share of its own, then the
 * rest of it in ever smaller pieces, then what others have not come to: one whose core was taken
 * does less. At most one such range between two barriers; which member gets what is anybody's
 * guess. */
bool team_claim(struct team *t, uint32_t member, uint32_t units, uint32_t *visited, uint32_t *begin,
                uint32_t *end);

/* How often members gave up polling and slept, since the team was opened. */
uint64_t team_parked(const struct team *t);

#endif
