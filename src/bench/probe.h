/* probe.h: what a server says of itself before it is measured: its kind, the model's name, how long
 * a call may be, where its metrics are. */
#ifndef WEIR_BENCH_PROBE_H
#define WEIR_BENCH_PROBE_H

#include "bench/body.h"
#include "bench/client.h"

struct probe {
    enum server_kind kind; /* never SERVER_AUTO */
    char model[256];       /* "" where it does not say */
    char version[64];
    uint64_t max_context; /* tokens of prompt and answer together; 0: unknown */
    uint32_t vocab;       /* 0: unknown */
    bool has_metrics;
    json_t *info; /* what the endpoints said, by path */
};

/* `wanted`: SERVER_AUTO to look. `model` (NULL: the first that is served) must be served where the
 * server lists what is. WEIR_CLOSED: it does not answer; WEIR_BAD_VALUE names the option. */
weir_status probe_server(struct client *c, enum server_kind wanted, const char *model,
                         struct probe *out, weir_error *err);
void probe_free(struct probe *p);

#endif
