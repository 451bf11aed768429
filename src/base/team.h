/* team.h: the thread team that runs a step. The caller is member 0; members 1..n-1 are threads that
 * wait, spinning briefly and then parked in the kernel, because a spinning team on a shared core
 * collapses by 10 to 100 times when a neighbour takes it. */
#ifndef WEIR_BASE_TEAM_H
#define WEIR_BASE_TEAM_H

#include <stdint.h>

struct team;

/* `threads` >= 1 members. NULL without memory or threads. */
struct team *team_open(uint32_t threads);
void team_close(struct team *t);
uint32_t team_threads(const struct team *t);
/* Runs fn(arg, member) on every member and returns when all have. One caller at a time. */
void team_run(struct team *t, void (*fn)(void *arg, uint32_t member), void *arg);
/* Inside fn: returns when every member has come; orders memory. */
void team_barrier(struct team *t);

#endif
