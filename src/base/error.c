/* error.c: fills error records. Called by every room. */
#include "base/error.h"

#include <stdarg.h>
#include <string.h>

/* Cuts a byte string so that no UTF-8 character is split: error text ends up in JSON. */
static void trim_partial_character(char *s) {
    size_t n = strlen(s);
    size_t back = 0;
    while (back < 4 && back < n && ((unsigned char)s[n - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back >= n)
        return;
    unsigned char lead = (unsigned char)s[n - 1 - back];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (need > back + 1)
        s[n - 1 - back] = 0;
}

weir_status weir_fail(weir_error *err, weir_status code, const char *where, const char *format,
                      ...) {
    if (!err)
        return code;
    err->code = code;
    snprintf(err->where, sizeof err->where, "%s", where ? where : "");
    trim_partial_character(err->where);
    va_list ap;
    va_start(ap, format);
    vsnprintf(err->message, sizeof err->message, format, ap);
    va_end(ap);
    trim_partial_character(err->message);
    return code;
}
