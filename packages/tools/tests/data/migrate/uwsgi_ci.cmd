uwsgi --http-socket :8000 --chdir /srv/site --module shop.wsgi:application --master -p 4 --threads 2 --harakiri=20 --static-map /static=/srv/site/static --enable-threads --vacuum -L
