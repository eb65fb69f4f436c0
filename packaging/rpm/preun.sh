# Before the files go, but not before an upgrade: the agent restores what it set when it ends.
if [ "$1" -eq 0 ]; then
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now lull.service || :
	fi
	# Settings of an agent that was killed together with its guard.
	if [ -d /run/lull ]; then
		/usr/bin/lull restore --state /run/lull ||
			echo "lull: settings in /run/lull are not restored, see above" >&2
	fi
fi
