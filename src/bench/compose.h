/* compose.h: a second thread that composes request bodies ahead of their time, in bounded memory.
 * The loop says what will be needed and later takes it; what was not foreseen is composed first. */
#ifndef WEIR_BENCH_COMPOSE_H
#define WEIR_BENCH_COMPOSE_H

#include "bench/body.h"

struct composer;

/* `maker` must outlive it and stay as it is. `budget_bytes` of bodies that wait to be taken. */
weir_status composer_open(const struct body_maker *maker, size_t budget_bytes,
                          struct composer **out, weir_error *err);
void composer_close(struct composer *c);
/* Readable when a body that was asked for in vain has become ready; composer_seen makes it wait
 * again. */
int composer_fd(const struct composer *c);
void composer_seen(struct composer *c);

/* This call will come: composed when there is time and room. Known ones are left as they are. */
void composer_ahead(struct composer *c, const struct call *call, const struct talk *talk);
/* Moves the body of a call to *out. False: not ready; it is composed next. out->bytes is NULL where
 * there was no memory. */
bool composer_take(struct composer *c, const struct call *call, const struct talk *talk,
                   struct body *out);
/* Drops what was foreseen for a play, so that nothing reads its talk any more. */
void composer_forget(struct composer *c, uint64_t play);

#endif
