/* page.h: the web page, embedded in the program, and its route. Called by server.c. */
#ifndef WEIR_SERVE_PAGE_H
#define WEIR_SERVE_PAGE_H

#include "serve/http.h"

/* The file web/dist/index.html as it was when this was built. */
extern const unsigned char web_page[];
extern const size_t web_page_bytes;

/* Serves it at / and /index.html without a key: it holds no secret, and asks for the key itself. */
void page_routes(struct http *h);

#endif
