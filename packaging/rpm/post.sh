# After the files are there, as the Debian package does: nothing is enabled or started.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
