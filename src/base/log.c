/* log.c: the log writer. One write call per line, so that lines of several threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static _Atomic int current_level = LOG_INFO;

void log_set_level(enum log_level level) {
    current_level = (int)level;
}

void log_line(enum log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if ((int)level > current_level)
        return;
    char line[2048];
    int head = snprintf(line, sizeof line, "weir: %s: ", names[level]);
    va_list ap;
    va_start(ap, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, ap);
    va_end(ap);
    if (body < 0)
        return;
    size_t n = (size_t)head + (size_t)body;
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    for (size_t i = (size_t)head; i < n; i++)
        if ((unsigned char)line[i] < 32 || line[i] == 127)
            line[i] = '?';
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* nowhere to complain to */
}
