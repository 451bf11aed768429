/* log.h: one line per event on standard error, with a level. The level is the only global state of
 * the program. */
#ifndef WEIR_BASE_LOG_H
#define WEIR_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
/* `weir: LEVEL: text`, newline added; control characters are shown as '?', so that input cannot
 * forge lines. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
