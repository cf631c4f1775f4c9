/*
 * The lab's stand-in for a site's uenv plugin (SPANK): --uenv and --view of sbatch and srun.
 *
 *   --uenv=IMAGE[:PLACE][,IMAGE[:PLACE]]...   each squashfs image is mounted for the tasks alone
 *   --view=NAME                               PLACE/env/NAME/bin comes first in their PATH
 *
 * The default place is the plugin's first argument in plugstack.conf. sbatch and srun refuse an
 * image that the caller can't read. Each task gets a mount namespace of its own below that of the
 * job. Slurm's headers are not on every machine, so what is used of its interface stands here, as
 * spank(8) describes it; SLURM_VERSION is given by whoever compiles this.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

typedef struct spank_handle *spank_t;

struct spank_option {
	char *name;
	char *arginfo;
	char *usage;
	int has_arg;
	int val;
	int (*callback)(int value, const char *argument, int remote);
};

enum { CONTEXT_LOCAL = 1, CONTEXT_REMOTE = 2, CONTEXT_ALLOCATOR = 3 };
enum { ITEM_JOB_UID = 0, ITEM_JOB_GID = 1 };

extern int spank_context(void);
extern int spank_option_register(spank_t, struct spank_option *);
extern int spank_get_item(spank_t, int item, ...);
extern int spank_getenv(spank_t, const char *name, char *value, int size);
extern int spank_setenv(spank_t, const char *name, const char *value, int overwrite);
extern void slurm_error(const char *format, ...);

const char plugin_name[] = "uenv";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION;
const unsigned int spank_plugin_version = 1;

#define LONGEST 4096
#define TRIES 16

static char images[LONGEST], view[256], usual_place[256] = "/user-environment";

static int keep(char *kept, size_t size, const char *argument)
{
	if (strlen(argument) >= size)
		return -1;
	strcpy(kept, argument);
	return 0;
}

static int take_images(int value, const char *argument, int remote)
{
	(void)value, (void)remote;
	return keep(images, sizeof(images), argument);
}

static int take_view(int value, const char *argument, int remote)
{
	(void)value, (void)remote;
	return keep(view, sizeof(view), argument);
}

static struct spank_option options[] = {
	{"uenv", "IMAGE[:PLACE],...", "Mount these squashfs images for the job.", 1, 0, take_images},
	{"view", "NAME", "Put the programs of this view first in the PATH.", 1, 0, take_view},
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
	int context = spank_context();

	if (count > 0 && keep(usual_place, sizeof(usual_place), words[0]))
		return -1;
	if (context != CONTEXT_LOCAL && context != CONTEXT_REMOTE && context != CONTEXT_ALLOCATOR)
		return 0;
	for (size_t each = 0; each < sizeof(options) / sizeof(*options); each++)
		if (spank_option_register(spank, &options[each]))
			return -1;
	return 0;
}

/* The next `IMAGE[:PLACE]` of the list, cut out of it; NULL at the end. */
static char *next_image(char **list, char **place)
{
	char *image = strsep(list, ","), *colon = image ? strstr(image, ":/") : NULL;

	*place = usual_place;
	if (colon) {
		*colon = 0;
		*place = colon + 1;
	}
	return image;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **words)
{
	char list[LONGEST], *rest = list, *place, *image;

	(void)spank, (void)count, (void)words;
	if (spank_context() != CONTEXT_LOCAL && spank_context() != CONTEXT_ALLOCATOR)
		return 0;
	if (!*images && *view) {
		slurm_error("uenv: --view=%s needs --uenv", view);
		return -1;
	}
	strcpy(list, images);
	while (*images && (image = next_image(&rest, &place)))
		if (access(image, R_OK)) {
			slurm_error("uenv: %s can't be read: %s", image, strerror(errno));
			return -1;
		}
	return 0;
}

/* A loop device for an image, opened as the job's owner; -1 and errno. */
static int loop_of(const char *image, uid_t user, gid_t group, char *name, size_t size)
{
	struct loop_config config = {.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR};
	int file, control, device = -1;

	setfsgid(group);
	setfsuid(user);
	file = open(image, O_RDONLY | O_CLOEXEC);
	setfsuid(0);
	setfsgid(0);
	config.fd = file;
	control = file < 0 ? -1 : open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	for (int each = 0; control >= 0 && each < TRIES; each++) {
		snprintf(name, size, "/dev/loop%d", ioctl(control, LOOP_CTL_GET_FREE));
		device = open(name, O_RDONLY | O_CLOEXEC);
		if (device < 0 || !ioctl(device, LOOP_CONFIGURE, &config))
			break;
		close(device);
		device = -1;
		if (errno != EBUSY) /* another one took it */
			break;
	}
	return device;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **words)
{
	char list[LONGEST], name[64], *rest = list, *place, *image;
	uid_t user;
	gid_t group;

	(void)count, (void)words;
	if (!*images)
		return 0;
	if (spank_get_item(spank, ITEM_JOB_UID, &user) || spank_get_item(spank, ITEM_JOB_GID, &group))
		return -1;
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_SLAVE | MS_REC, NULL)) {
		slurm_error("uenv: no mounts of its own: %s", strerror(errno));
		return -1;
	}
	strcpy(list, images);
	while ((image = next_image(&rest, &place))) {
		int device = loop_of(image, user, group, name, sizeof(name));

		if (device < 0 ||
		    mount(name, place, "squashfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)) {
			slurm_error("uenv: %s can't be mounted at %s: %s", image, place, strerror(errno));
			return -1;
		}
		close(device);
	}
	return 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	char list[LONGEST], path[LONGEST], longer[3 * LONGEST], *rest = list, *place;

	(void)count, (void)words;
	if (!*view)
		return 0;
	strcpy(list, images);
	next_image(&rest, &place);
	snprintf(longer, sizeof(longer), "%s/env/%s/bin", place, view);
	if (access(longer, X_OK)) {
		slurm_error("uenv: there is no view %s", view);
		return -1;
	}
	if (!spank_getenv(spank, "PATH", path, sizeof(path))) {
		strcat(longer, ":");
		strcat(longer, path);
	}
	return spank_setenv(spank, "PATH", longer, 1);
}
