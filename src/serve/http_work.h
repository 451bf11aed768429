/* http_work.h: worker threads behind http_work and http_wake. Called by http_server.c. */
#ifndef WEIR_SERVE_HTTP_WORK_H
#define WEIR_SERVE_HTTP_WORK_H

#include "serve/http_inside.h"

/* NULL without memory or threads. */
struct workers *workers_open(struct http *h, uint32_t threads);
void workers_close(struct workers *w); /* after workers_finish */
/* Loop thread: calls done of the jobs that have run or were forgotten. */
void workers_collect(struct http *h);
/* Loop thread: waits until no job is open. */
void workers_finish(struct http *h);
/* The event of the eventfd; arg is the http. */
void workers_event(evutil_socket_t fd, short what, void *arg);

#endif
