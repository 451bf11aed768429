/* chat_screen.h: shows an answer while it comes: thinking dimmed, folded into one line or hidden,
 * then the answer. On a terminal control characters are shown as '?', so that a model cannot drive
 * it; into a pipe the answer goes as it is, without thinking or colours. */
#ifndef WEIR_CLI_CHAT_SCREEN_H
#define WEIR_CLI_CHAT_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

enum chat_thinking { CHAT_THINKING_SHOW, CHAT_THINKING_FOLD, CHAT_THINKING_HIDE };

struct chat_screen {
    bool on_terminal, has_colour;
    enum chat_thinking thinking;
    /* of the answer in progress */
    bool in_thinking, any, ends_line;
    size_t words;
    bool in_word;
};

void chat_screen_open(struct chat_screen *s);
void chat_screen_begin(struct chat_screen *s);
void chat_screen_reasoning(void *screen, const char *text, size_t n);
void chat_screen_content(void *screen, const char *text, size_t n);
/* Ends the answer's last line. */
void chat_screen_end(struct chat_screen *s);
/* A dimmed remark of the program itself; on a terminal only. */
void chat_screen_note(struct chat_screen *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
