/* adapter.h: what servers of each kind call their own counters, and the sample that comes of them.
 * Which names were checked against what: docs/bench.md, "Server adapters". */
#ifndef WEIR_BENCH_ADAPTER_H
#define WEIR_BENCH_ADAPTER_H

#include "bench/body.h"
#include "trace/run.h"

/* Which kind of server writes such metrics; SERVER_AUTO: cannot be told. */
enum server_kind adapter_of_metrics(const char *text, size_t n);
/* Fills *out from a scrape; what the server does not tell stays NAN. Returns how many of the
 * adapter's names were found. SERVER_OPENAI has no names. */
uint32_t adapter_read(enum server_kind kind, const char *text, size_t n, struct server_sample *out);

#endif
