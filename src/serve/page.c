/* page.c: serves the embedded page. Called by the transport through its routes.
 * The page carries its own content security policy (its build knows the hash of its script); the
 * same policy is sent as a header, where it also binds what comes before the meta element, with a
 * ban on being framed added, which a meta element cannot express. */
#include "serve/page.h"

#include "serve/page_config.h"

#include <string.h>

/* Included by the assembler: 300 KB as a C array would be a megabyte of source. */
__asm__(".section .rodata\n"
        ".global web_page\n"
        ".global web_page_bytes\n"
        "web_page:\n"
        ".incbin \"" WEB_PAGE_FILE "\"\n"
        "web_page_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        "web_page_bytes:\n"
        ".quad web_page_end - web_page\n"
        ".text\n");

static const char etag[] = "\"" WEB_PAGE_HASH "\"";

/* content="..." of the page's policy element; strict when there is none. */
static void policy(char *out, size_t n) {
    static const char before[] = "http-equiv=\"Content-Security-Policy\" content=\"";
    static const char strict[] = "default-src 'none'";
    const char *page = (const char *)web_page;
    const char *at = memmem(page, web_page_bytes, before, sizeof before - 1);
    const char *start = at ? at + sizeof before - 1 : strict;
    size_t length = at ? strcspn(start, "\"") : sizeof strict - 1;
    if (length > n - 64)
        length = n - 64;
    memcpy(out, start, length);
    strcpy(out + length, "; frame-ancestors 'none'");
}

static void page(void *arg, struct http_request *q, struct http_reply *r) {
    char text[1024];
    policy(text, sizeof text);
    http_reply_header(r, "Content-Security-Policy", text);
    http_reply_header(r, "Referrer-Policy", "no-referrer");
    http_reply_header(r, "Cache-Control", "no-cache"); /* ask again, mostly to hear 304 */
    http_reply_header(r, "ETag", etag);
    const char *known = http_header_get(q, "if-none-match");
    if (known && strstr(known, etag))
        http_reply_bytes(r, 304, NULL, "", 0);
    else
        http_reply_bytes(r, 200, "text/html; charset=utf-8", web_page, web_page_bytes);
}

void page_routes(struct http *h) {
    http_route(h, &(struct http_route){HTTP_GET, "/", HTTP_OPEN, false, false, page, NULL});
    http_route(h,
               &(struct http_route){HTTP_GET, "/index.html", HTTP_OPEN, false, false, page, NULL});
}
