/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of the MRC application interface. A program may define MRC_API_VER_USED, and MRC_VENDOR_API_VER_USED,
 * before it includes mrc.h: what was added to the interface later is then not declared. */
#ifndef _MRC_API_VER_H_
#define _MRC_API_VER_H_

#define MRC_API_VER_MAJOR_OFFSET 24
#define MRC_API_VER_MINOR_OFFSET 16
#define MRC_API_VER_SUBMINOR_OFFSET 0

/* A major version is incompatible with the one before, a minor one adds, a subminor one fixes. Usable in #if. */
#define MRC_API_VER(major, minor, sub)                                                                                 \
	(((major) * (1U << MRC_API_VER_MAJOR_OFFSET)) | ((minor) * (1U << MRC_API_VER_MINOR_OFFSET)) |                     \
	 ((sub) * (1U << MRC_API_VER_SUBMINOR_OFFSET)))

#define MRC_API_VER_LATEST MRC_API_VER(0xFFU, 0xFFU, 0xFFFFU)

#define MRC_API_CURRENT_VERSION MRC_API_VER(1U, 0U, 1U)
#define MRC_API_LAST_SUPPORTED_VERSION MRC_API_VER(0U, 0U, 0U)

#define MRC_VENDOR_API_CURRENT_VERSION MRC_API_VER(1U, 0U, 0U)
#define MRC_VENDOR_API_LAST_SUPPORTED_VERSION MRC_API_VER(0U, 0U, 0U)

#ifndef MRC_API_VER_USED
#define MRC_API_VER_USED MRC_API_CURRENT_VERSION
#elif MRC_API_VER_USED == MRC_API_VER_LATEST
#undef MRC_API_VER_USED
#define MRC_API_VER_USED MRC_API_CURRENT_VERSION
#endif

#if MRC_API_VER_USED > MRC_API_CURRENT_VERSION
#error "MRC_API_VER_USED is newer than this header"
#elif MRC_API_VER_USED == MRC_API_LAST_SUPPORTED_VERSION
#warning "MRC_API_VER_USED is the oldest version that this header supports"
#endif

#ifndef MRC_VENDOR_API_VER_USED
#define MRC_VENDOR_API_VER_USED MRC_VENDOR_API_CURRENT_VERSION
#elif MRC_VENDOR_API_VER_USED == MRC_API_VER_LATEST
#undef MRC_VENDOR_API_VER_USED
#define MRC_VENDOR_API_VER_USED MRC_VENDOR_API_CURRENT_VERSION
#endif

#if MRC_VENDOR_API_VER_USED > MRC_VENDOR_API_CURRENT_VERSION
#error "MRC_VENDOR_API_VER_USED is newer than this header"
#elif MRC_VENDOR_API_VER_USED == MRC_VENDOR_API_LAST_SUPPORTED_VERSION
#warning "MRC_VENDOR_API_VER_USED is the oldest version that this header supports"
#endif

#endif
