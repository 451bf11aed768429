/* chat_turn.h: a generated turn read back as the message that a client will send in its next
 * request, so that the ids can stand for it then. Called by the server at the end of a turn. */
#ifndef WEIR_TEXT_CHAT_TURN_H
#define WEIR_TEXT_CHAT_TURN_H

#include "text/chat.h"

/* Reads the ids generated behind a prompt, the id that ended the turn included. A safety stop in
 * its place (which the model has not been fed) is replaced by the end of turn in *ids.
 *
 * True when the ids may stand for the message that they parse to: they end the turn, and the
 * renderer would write the same markers in the same order and the same text between, but for white
 * space and an empty response channel (at most TURN_EXTRA_BYTES more of it). So nothing hides in
 * them that the message does not say: whoever steers his own generation cannot plant tags or words
 * into prompts of others.
 *
 * `thinking` as in the prompt. `body` becomes the message's body as chat_replay is asked for it,
 * *calls the number of its calls. Linear in the ids; encodes nothing. Any thread. */
enum { TURN_EXTRA_BYTES = 64 };
bool chat_turn_read(const struct chat *c, bool thinking, struct ids *ids, struct text *body,
                    size_t *calls);

#endif
