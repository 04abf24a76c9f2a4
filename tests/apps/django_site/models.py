"""One model, for the admin."""

from django.db import models


class Seed(models.Model):
    """Something that is sold."""

    name = models.CharField(max_length=80, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    picture = models.FileField(upload_to="pictures", blank=True)
    sold = models.IntegerField(default=0)

    def __str__(self):
        return self.name
