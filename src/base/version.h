/* version.h: which weir this is; the same as in the project line of meson.build. */
#ifndef WEIR_BASE_VERSION_H
#define WEIR_BASE_VERSION_H

#define WEIR_VERSION "0.1.0"

#endif
