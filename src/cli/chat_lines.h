/* chat_lines.h: reads what the user says, one message at a time: with editing and history on a
 * terminal, plainly from a pipe. */
#ifndef WEIR_CLI_CHAT_LINES_H
#define WEIR_CLI_CHAT_LINES_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct chat_lines;

/* `interrupted` is set by the SIGINT handler, which must be installed without SA_RESTART. NULL
 * without memory. */
struct chat_lines *chat_lines_open(volatile sig_atomic_t *interrupted);
void chat_lines_close(struct chat_lines *l);
bool chat_lines_on_terminal(const struct chat_lines *l);

/* The next message, in a new string; NULL at the end of input. Lines ending in a backslash go on;
 * everything between lines of three double quotes is one message; lines that arrive together, as
 * pasted ones do, are one message. Ctrl-C drops what was typed and gives "". */
char *chat_lines_read(struct chat_lines *l);

#endif
