# After the old files have gone; with an argument of 1 a newer version is there.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	if [ "$1" -ge 1 ]; then
		systemctl try-restart lull.service || :
	fi
fi
